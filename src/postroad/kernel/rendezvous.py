"""Rendezvous hashing: which of several processes is responsible for something. Pure.

When a process joins or leaves, only what it gains or had changes its owner.
"""

import hashlib
from collections.abc import Collection


def ranking(key: str, members: Collection[str]) -> list[str]:
    """The members in the order in which they are responsible for `key`: the owner first, then those that replace it."""
    return sorted(members, key=lambda member: _rank(member, key), reverse=True)


def owner_of(key: str, members: Collection[str]) -> str | None:
    """The member that is responsible for `key`; None without members."""
    return max(members, key=lambda member: _rank(member, key), default=None)


def _rank(member: str, key: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{member}\0{key}".encode(), digest_size=8).digest(), member
