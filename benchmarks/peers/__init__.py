"""Other servers with comparable HTTP APIs. Each module has the same form: its name in scripts/setup-peers, its durability,
and `running`, which runs the server on free loopback ports in a temporary directory.
"""
