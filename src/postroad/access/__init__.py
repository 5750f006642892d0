"""Tenants, keys, JWT secrets, stream tokens and invites; authentication of requests."""
