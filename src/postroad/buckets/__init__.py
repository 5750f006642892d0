"""Buckets: values by key with revisions, in the layout of NATS KV, that watchers follow."""
