"""Which process delivers a subscription: rendezvous hashing over the living processes. Pure.

When a process joins or leaves, only the subscriptions that it gains or had change their owner.
"""

import hashlib
from collections.abc import Collection


def owner_of(subscription: str, members: Collection[str]) -> str | None:
    """The member that delivers a subscription; None without members."""
    return max(members, key=lambda member: (_weight(member, subscription), member), default=None)


def _weight(member: str, subscription: str) -> bytes:
    return hashlib.blake2b(f"{member}\0{subscription}".encode(), digest_size=8).digest()
