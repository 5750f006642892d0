"""What a capability contributes to live state: sections of rows, which `live_state/` sends to open consoles as they change."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from postroad.kernel.identity import Caller, Scope

Rows = Mapping[str, msgspec.Struct]


class LiveSection:
    """A kind of rows of a tenant, or of the installation (`is_platform`, then the tenant is empty).

    Rows are frozen structs by key. They are read every second while a stream of this process watches the section, once for all
    streams of a tenant, and compared with those of the second before: so reading must be cheap, and a row must not change by
    the mere passing of time.
    """

    name: ClassVar[str]  # in `watch`
    scope: ClassVar[Scope] = Scope.READ  # `admin` is accepted, too
    is_platform: ClassVar[bool] = False
    sample_fields: ClassVar[Sequence[str]] = ()  # of `samples`, after the time

    async def open(self, tenant: str) -> None:
        """The first stream of the tenant watches the section. Must be repeatable."""

    def close(self, tenant: str) -> None:
        """No stream of the tenant has watched the section for a while."""

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        """All rows. `names` are the keys of those on screen, which must be up to date; others may be some seconds old."""
        raise NotImplementedError

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        """True if a caller that is restricted to some resources may see the row."""
        return caller.allowed is None

    def samples(self, tenant: str, keys: Sequence[str], names: frozenset[str]) -> Mapping[str, Sequence[Sequence[Any]]]:
        """For the first message of a stream: the samples of the last ten minutes, at most 60 of each key, oldest first.

        If there are too many keys, those on screen (`names`) come first.
        """
        return {}
