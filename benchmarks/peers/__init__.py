"""Other servers that do over HTTP what Postroad does, each in a module of its own and all of one shape: what scripts/setup-peers
calls it, what it promises, and `running`, which starts it on free ports of loopback in a directory of its own; gone afterwards.
"""
