"""The format of a snapshot of the registry: compressed JSON, sealed. Pure.

    gzip( {"v": 1, "checksum": sha256 of the body, "seal": …, "body": {…}} )

The body has the routes and services in parts of some hundred, each entry with the revision of its record. Grants name a sender
by its position in `senders`. Secrets are as encrypted as in the registry. Nothing of the body is decoded before the seal was
verified; whatever is wrong is one exception, `SnapshotRefused`, with the reason that metrics count.
"""

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import msgspec

from postroad.api.commands import GRANTS_PER_ROUTE_MAX
from postroad.commands.packed_routes import Detail, PackedRoute, PackedRoutes
from postroad.commands.records import RouteRecord, ServiceRecord
from postroad.kernel.clock import EpochMs

FORMAT = 1
_PART_ENTRIES = 500
_COMPRESSION = 3
_WINDOW_BITS = 31  # a gzip header

T = TypeVar("T")
Sign = Callable[[bytes], str]
Verify = Callable[[str], bytes | None]  # the text that was signed, None if the seal is not ours


class SnapshotRefused(Exception):
    """`why`: missing, unavailable, expired, malformed, unsealed, older, version, registry, too-large."""

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(f"{why}: {detail}")
        self.why, self.detail = why, detail


class SnapshotTable(msgspec.Struct, frozen=True):
    """Up to which revision of a table the snapshot goes. `created` is the time at which the table's stream was created."""

    revision: int
    created: str


class CacheTtl(msgspec.Struct, frozen=True):
    """Seconds, as in the settings of the caches."""

    fresh: float
    stale: float


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """`records` identifies the formats of the records: a snapshot is only read by a version that has the same ones."""

    version_id: str
    number: int
    generated_at: str
    generated_at_ms: int
    ttl_policy: dict[str, CacheTtl]
    records: str
    routes: SnapshotTable
    services: SnapshotTable

    @property
    def expires_at_ms(self) -> int:
        """When the first of its caches would not be used any more."""
        return self.generated_at_ms + int(min((one.stale for one in self.ttl_policy.values()), default=0) * 1000)


@dataclass(frozen=True, slots=True)
class RegistryState:
    """What a snapshot has: the records of both tables by key, each with its revision. `unreadable` are keys without a record."""

    head: SnapshotHead
    routes: PackedRoutes
    route_revisions: Mapping[str, int]
    unreadable_routes: tuple[str, ...]
    services: Mapping[str, ServiceRecord]
    service_revisions: Mapping[str, int]
    unreadable_services: tuple[str, ...]


class _Route(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`senders` are positions, in order; `created` the times of the grants; `details` one for all, or one for each."""

    key: str
    revision: int
    record: RouteRecord
    senders: list[int]
    created: list[EpochMs]
    details: list[Detail]


class _Service(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    key: str
    revision: int
    record: ServiceRecord


class _Unreadable(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    key: str
    revision: int


class _Body(msgspec.Struct):
    head: SnapshotHead
    senders: list[str]
    routes: list[msgspec.Raw]
    services: list[msgspec.Raw]
    unreadable_routes: list[_Unreadable]
    unreadable_services: list[_Unreadable]


class _Sealed(msgspec.Struct):
    v: int
    checksum: str
    seal: str
    body: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode_sealed = msgspec.json.Decoder(_Sealed).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_routes = msgspec.json.Decoder(list[_Route]).decode
_decode_services = msgspec.json.Decoder(list[_Service]).decode


def records_version() -> str:
    """A hash of the formats of the records. Fields that one version adds are lost by another that re-encodes the records."""
    schemas = msgspec.json.schema_components((RouteRecord, ServiceRecord))
    return hashlib.sha256(msgspec.json.encode(schemas, order="deterministic")).hexdigest()[:16]


# Writing


def body_parts(
    head: SnapshotHead,
    routes: Iterable[tuple[str, PackedRoute]],
    senders: Mapping[int, str],
    services: Mapping[str, ServiceRecord],
    revisions: tuple[Mapping[str, int], Mapping[str, int]],
    unreadable: tuple[Sequence[str], Sequence[str]],
) -> Iterator[bytes]:
    """The body in pieces of some hundred entries, so that the caller can do other work between them.

    `senders` are ordered by number; `revisions` and `unreadable` are those of routes and services.
    """
    position = {number: index for index, number in enumerate(senders)}
    yield b'{"head":' + _encode(head) + b',"senders":' + _encode(list(senders.values())) + b',"routes":['
    yield from _joined(_route_part(part, position, revisions[0]) for part in _batched(routes, _PART_ENTRIES))
    yield b'],"services":['
    yield from _joined(
        _encode([_Service(key, revisions[1][key], record) for key, record in part])
        for part in _batched(services.items(), _PART_ENTRIES)
    )
    for name, keys, known in zip(("routes", "services"), unreadable, revisions, strict=True):
        yield (b'],"' if name == "routes" else b',"') + f'unreadable_{name}":'.encode()
        yield _encode([_Unreadable(key, known[key]) for key in keys])
    yield b"}"


def _batched(some: Iterable[T], count: int) -> Iterator[list[T]]:
    left = iter(some)
    while part := list(islice(left, count)):
        yield part


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    for index, part in enumerate(parts):
        yield b"," + part if index else part


def _route_part(part: Iterable[tuple[str, PackedRoute]], position: Mapping[int, int], revisions: Mapping[str, int]) -> bytes:
    entries = []
    for key, packed in part:
        count = len(packed)
        senders = [position[number] for number in packed.grants[:count]]
        entries.append(_Route(key, revisions[key], packed.head, senders, list(packed.grants[count:]), list(packed.details)))
    return _encode(entries)


def sealed(body: bytes, sign: Sign) -> bytes:
    """The compressed snapshot. Takes a second for a large body."""
    checksum = hashlib.sha256(body).hexdigest()
    opening = {"v": FORMAT, "checksum": checksum, "seal": sign(_signed(FORMAT, checksum))}
    return gzip.compress(_encode(opening)[:-1] + b',"body":' + body + b"}", _COMPRESSION, mtime=0)


def _signed(version: int, checksum: str) -> bytes:
    return f"{version} {checksum}".encode()


# Reading


class OpenedSnapshot:
    """A snapshot whose seal is valid and whose head is known. `parts` decodes the rest."""

    def __init__(self, body: _Body) -> None:
        self._body = body
        self.head = body.head
        self._routes = PackedRoutes(body.senders)
        self._revisions: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._services: dict[str, ServiceRecord] = {}

    def parts(self) -> Iterator[None]:
        """Decode and check the content, in steps of some hundred entries. Raises SnapshotRefused."""
        count = len(self._body.senders)
        _check(len(set(self._body.senders)) == count, "a sender appears twice")
        for part in self._body.routes:
            for route in _decoded(_decode_routes, part):
                self._add_route(route, count)
            yield
        for part in self._body.services:
            for service in _decoded(_decode_services, part):
                self._add(1, service.key, service.revision)
                _check(service.key == service.record.key, "a service has another key than its name")
                self._services[service.key] = service.record
            yield
        for kind, some in enumerate((self._body.unreadable_routes, self._body.unreadable_services)):
            for one in some:
                _check(one.key not in self._revisions[kind], "a key appears twice")
                self._check_revision(kind, one.revision)
                self._revisions[kind][one.key] = one.revision

    def _add_route(self, route: _Route, senders: int) -> None:
        self._add(0, route.key, route.revision)
        ids, count = route.senders, len(route.senders)
        _check(route.key == route.record.key and not route.record.grants, "a route has another key than its name")
        _check(count <= GRANTS_PER_ROUTE_MAX and len(route.created) == count, "a route has too many grants, or not their times")
        _check(len(route.details) in {min(count, 1), count}, "a route does not have the details of its grants")
        if count:
            _check(ids[0] >= 0 and ids[-1] < senders and sorted(set(ids)) == ids, "a route names senders that do not exist")
        self._routes.put_packed(route.key, route.record, array("q", ids + route.created), tuple(route.details))

    def _add(self, kind: int, key: str, revision: int) -> None:
        """Keys are in order, so none appears twice."""
        known = self._revisions[kind]
        _check(not known or key > next(reversed(known)), "the keys are not in order")
        self._check_revision(kind, revision)
        known[key] = revision

    def _check_revision(self, kind: int, revision: int) -> None:
        newest = (self.head.routes, self.head.services)[kind].revision
        _check(0 < revision <= newest, "a record is newer than the snapshot")

    @property
    def state(self) -> RegistryState:
        """The content, once all parts are decoded."""
        unreadable = self._body.unreadable_routes, self._body.unreadable_services
        ordered = [
            dict(sorted(known.items())) if some else known for known, some in zip(self._revisions, unreadable, strict=True)
        ]
        return RegistryState(
            self.head,
            self._routes,
            ordered[0],
            tuple(one.key for one in unreadable[0]),
            self._services,
            ordered[1],
            tuple(one.key for one in unreadable[1]),
        )


def opened(content: bytes, verify: Verify, bytes_max: int) -> OpenedSnapshot:
    """Raises SnapshotRefused."""
    sealed_text = _decoded(_decode_sealed, _decompressed(content, bytes_max))
    if sealed_text.v != FORMAT:
        raise SnapshotRefused("version", f"format {sealed_text.v}; this version reads {FORMAT}")
    checksum = hashlib.sha256(sealed_text.body).hexdigest()
    _check(checksum == sealed_text.checksum, "the checksum is another one")
    if verify(sealed_text.seal) != _signed(FORMAT, checksum):
        raise SnapshotRefused("unsealed", "the platform key did not seal it")
    head = _decoded(_decode_head, sealed_text.body).head
    if head.records != records_version():
        raise SnapshotRefused("version", "its records have another format")
    return OpenedSnapshot(_decoded(_decode_body, sealed_text.body))


class _OnlyHead(msgspec.Struct):
    head: SnapshotHead


_decode_head = msgspec.json.Decoder(_OnlyHead).decode


def _decompressed(content: bytes, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_WINDOW_BITS)
    try:
        text = decompressor.decompress(content, bytes_max + 1)
    except zlib.error as exc:
        raise SnapshotRefused("malformed", "it cannot be decompressed") from exc
    if len(text) > bytes_max:
        raise SnapshotRefused("too-large", f"it has more than {bytes_max} bytes")
    _check(decompressor.eof and not decompressor.unused_data, "it is not complete")
    return text


def _decoded(decode: Callable[[Any], Any], text: object) -> Any:
    try:
        return decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise SnapshotRefused("malformed", "it cannot be decoded") from exc


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise SnapshotRefused("malformed", problem)
