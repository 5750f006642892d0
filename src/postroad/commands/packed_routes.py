"""Routes in memory, packed: 100,000 routes with 1,000,000 grants as records of their own would take 400 MB in every worker.

The grants of a route are an array of sender ids, in order, and of the times of their creation; what else they have is mostly the
same for all of them. Names of services, commands and tenants are shared. A record with its grants is built when it is asked for.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from postroad.api.commands import Sensitivity
from postroad.commands.records import GrantRecord, RouteRecord
from postroad.commands.registry_view import KnownRoute, packed_route
from postroad.kernel.clock import EpochMs

Detail = tuple[str, EpochMs | None, Sensitivity | None]  # who created a grant, its expiry, its sensitivity

_SHARED_MAX = 100_000


class PackedRoute(msgspec.Struct, frozen=True, gc=False):
    """`head` is the record without grants. `grants` has the ids of the senders, then the times of creation, in the same order;
    `details` one entry for all grants, or one for each."""

    head: RouteRecord
    grants: "array[int]"
    details: tuple[Detail, ...]

    def __len__(self) -> int:
        return len(self.grants) // 2

    @property
    def ids(self) -> Sequence[int]:
        return self.grants[: len(self)]

    def grant(self, index: int, source: str) -> GrantRecord:
        by, expires_at_ms, sensitivity = self.details[index if len(self.details) > 1 else 0]
        return GrantRecord(source, self.grants[len(self) + index], by, expires_at_ms, sensitivity)


class SenderIds:
    """Numbers for the senders that grants name. A number is never used for another sender, so a copy of an array stays safe."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._ids = {name: number for number, name in enumerate(names)}
        self._names = dict(enumerate(names))
        self._uses = dict.fromkeys(self._names, 0)
        self._next = len(names)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> int | None:
        return self._ids.get(name)

    def name(self, number: int) -> str:
        return self._names[number]

    def names(self) -> dict[int, str]:
        """All names by number, in order of the numbers."""
        return dict(self._names)

    def take(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = self._next
            self._names[number], self._uses[number] = name, 0
            self._next += 1
        self._uses[number] += 1
        return number

    def hold(self, number: int) -> None:
        self._uses[number] += 1

    def release(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            del self._ids[self._names.pop(number)]


@lru_cache(maxsize=4096)
def _shared_details(details: tuple[Detail, ...]) -> tuple[Detail, ...]:
    return details


class UsedGrants:
    """The grants of a route by sender. Those that were used are kept as records."""

    __slots__ = ("_found", "_route", "_senders")

    def __init__(self, route: PackedRoute, senders: SenderIds) -> None:
        self._route, self._senders = route, senders
        self._found: dict[str, GrantRecord] = {}

    def get(self, source: str) -> GrantRecord | None:
        found = self._found.get(source)
        if found is not None:
            return found
        number = self._senders.find(source)
        if number is None:
            return None
        count = len(self._route)
        index = bisect_left(self._route.grants, number, 0, count)
        if index == count or self._route.grants[index] != number:
            return None
        found = self._found[source] = self._route.grant(index, source)
        return found


class PackedRoutes:
    """Records of routes by key, as a table keeps them (`jetstream.replicated_table.Records`)."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.senders = SenderIds(names)
        self._routes: dict[str, PackedRoute] = {}
        self._shared: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, key: object) -> bool:
        return key in self._routes

    def get(self, key: str, /) -> RouteRecord | None:
        packed = self._routes.get(key)
        if packed is None or not len(packed):
            return None if packed is None else packed.head
        grants = tuple(packed.grant(index, self.senders.name(number)) for index, number in enumerate(packed.ids))
        return msgspec.structs.replace(packed.head, grants=grants)

    def known(self, key: str) -> KnownRoute | None:
        """The route as the dispatcher uses it."""
        packed = self._routes.get(key)
        return None if packed is None else packed_route(packed.head, UsedGrants(packed, self.senders))

    def __setitem__(self, key: str, record: RouteRecord) -> None:
        self._put(key, self._packed(record))

    def __delitem__(self, key: str) -> None:
        self._release(self._routes.pop(key))

    def put_packed(self, key: str, head: RouteRecord, grants: "array[int]", details: tuple[Detail, ...]) -> None:
        """Add a route whose senders have the numbers of this store."""
        for number in grants[: len(grants) // 2]:
            self.senders.hold(number)
        self._put(key, PackedRoute(self._sharing(head), grants, _shared_details(details)))

    def adopt(self, other: "PackedRoutes") -> None:
        """Become the other one, which is not used any more."""
        self.senders, self._routes, self._shared = other.senders, other._routes, other._shared

    def packed(self, key: str) -> PackedRoute:
        return self._routes[key]

    def _put(self, key: str, packed: PackedRoute) -> None:
        before = self._routes.get(key)
        self._routes[key] = packed
        if before is not None:
            self._release(before)

    def _release(self, packed: PackedRoute) -> None:
        for number in packed.ids:
            self.senders.release(number)

    def _packed(self, record: RouteRecord) -> PackedRoute:
        by_id = {self.senders.take(grant.source): grant for grant in _latest(record.grants)}
        ids = sorted(by_id)
        ordered = [by_id[number] for number in ids]
        details: tuple[Detail, ...] = tuple((one.created_by, one.expires_at_ms, one.sensitivity) for one in ordered)
        if len(set(details)) == 1:
            details = details[:1]
        head = record if not record.grants else msgspec.structs.replace(record, grants=())
        times = [one.created_at_ms for one in ordered]
        return PackedRoute(self._sharing(head), array("q", [*ids, *times]), _shared_details(details))

    def _sharing(self, head: RouteRecord) -> RouteRecord:
        """The record with names that it shares with others."""
        shared = self._shared
        if len(shared) > _SHARED_MAX:
            shared.clear()
        for field in ("tenant", "service", "command", "queue"):
            text: str = getattr(head, field)
            msgspec.structs.force_setattr(head, field, shared.setdefault(text, text))
        return head


def _latest(grants: Sequence[GrantRecord]) -> Sequence[GrantRecord]:
    """One grant for each sender: the last one, if a record names a sender twice."""
    by_source = {grant.source: grant for grant in grants}
    return grants if len(by_source) == len(grants) else tuple(by_source.values())
