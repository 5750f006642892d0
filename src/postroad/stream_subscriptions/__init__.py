"""Subscriptions to durable streams: who has something to read is woken, by a webhook or through a stream of wakes.

The reserved part (`__ds`) of the Durable Streams protocol. A subscription says which streams it follows, and remembers how far
each was acknowledged. When one has more, its subscriber is woken once, and not again before it is done or its lease has ended.
"""
