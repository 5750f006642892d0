"""Subscriptions to durable streams: the reserved part (`__ds`) of the Durable Streams protocol.

A subscription selects streams and stores the acknowledged offset of each. When a stream has more data, the subscriber is woken
once, by a webhook or through a wake stream, and not again until it is done or its lease has expired.
"""
