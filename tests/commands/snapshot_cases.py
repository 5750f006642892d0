"""Snapshots of a small registry, for tests, and ways to damage them."""

import gzip
import hashlib
import random
from collections.abc import Callable
from typing import Any

import msgspec

from postroad.api.command_limits import RateLimit
from postroad.api.commands import Sensitivity
from postroad.commands.packed_routes import PackedRoutes
from postroad.commands.records import GrantRecord, RevokedGrant, RouteRecord, SecretRecord, ServiceRecord
from postroad.commands.snapshot_format import (
    CacheTtl,
    RegistryState,
    SnapshotHead,
    SnapshotTable,
    body_parts,
    opened,
    records_version,
    sealed,
)
from postroad.commands.snapshots import SnapshotSeal
from postroad.crypto.signing import Signer

SEAL = SnapshotSeal(Signer(("a key of the platform, long enough",), "registry snapshot"))
OTHER_SEAL = SnapshotSeal(Signer(("another key of a platform, long enough",), "registry snapshot"))
NOW = 1_700_000_000_000
BYTES_MAX = 1_000_000


def head(number: int = NOW, **changes: Any) -> SnapshotHead:
    ttl = {"routes": CacheTtl(60, 180), "grants": CacheTtl(60, 180), "secrets": CacheTtl(60, 180)}
    fields = {
        "version_id": f"{number}-abc",
        "number": number,
        "generated_at": "2023-11-14T22:13:20.000Z",
        "generated_at_ms": NOW,
        "ttl_policy": ttl,
        "records": records_version(),
        "routes": SnapshotTable(5000, "2026-01-01T00:00:00Z"),
        "services": SnapshotTable(5000, "2026-01-01T00:00:00Z"),
    }
    return SnapshotHead(**{**fields, **changes})


def routes(count: int, grants: int = 3, first: int = 0) -> dict[str, RouteRecord]:
    """The grants of a route end never, all at the same time, or each at its own and with its own sensitivity."""
    made: dict[str, RouteRecord] = {}
    for number in range(count):
        granted = tuple(
            GrantRecord(f"acme/s{first + number + one:05}", one, "key", *_details(number, one)) for one in range(grants)
        )
        limit = RateLimit(max=number, interval_seconds=60, burst=5) if number % 4 == 1 else None
        record = RouteRecord(
            tenant="acme",
            service="bot",
            command=f"c{number:05}",
            queue="q",
            grants=granted,
            rate_limit=limit,
            revoked=(RevokedGrant("acme/gone", number),) if number % 4 == 2 else (),
            created_at_ms=1,
            updated_at_ms=1,
        )
        made[record.key] = record
    return made


def _details(route: int, grant: int) -> tuple[int | None, Sensitivity | None]:
    match route % 3:
        case 1:
            return NOW + route, "low"
        case 2:
            return NOW + grant, ("critical", "moderate", None)[grant % 3]
        case _:
            return None, None


def services(count: int) -> dict[str, ServiceRecord]:
    made = [
        ServiceRecord(
            tenant="acme",
            name=f"s{number:05}",
            incarnation="i",
            trusted_keys=("key",),
            secrets=(SecretRecord(number=1, locked=f"encrypted-{number}", created_at_ms=1),),
            created_at_ms=1,
            updated_at_ms=1,
        )
        for number in range(count)
    ]
    return {one.key: one for one in made}


def snapshot(
    about: SnapshotHead | None = None,
    of_routes: dict[str, RouteRecord] | None = None,
    of_services: dict[str, ServiceRecord] | None = None,
    seal: SnapshotSeal = SEAL,
    unreadable: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> bytes:
    some, packed = routes(20) if of_routes is None else of_routes, PackedRoutes()
    for key, record in some.items():
        packed[key] = record
    known = services(5) if of_services is None else of_services
    revisions = (
        {key: number for number, key in enumerate([*some, *unreadable[0]], 1)},
        {key: number for number, key in enumerate([*known, *unreadable[1]], 1)},
    )
    parts = body_parts(
        about or head(), [(key, packed.packed(key)) for key in some], packed.senders.names(), known, revisions, unreadable
    )
    return sealed(b"".join(parts), seal.sign)


def read(content: bytes, seal: SnapshotSeal = SEAL, bytes_max: int = BYTES_MAX) -> RegistryState:
    """As a worker reads it. Raises SnapshotRefused."""
    found = opened(content, seal.verify, bytes_max)
    for _ in found.parts():
        pass
    return found.state


def content_of(state: RegistryState) -> dict[str, object]:
    """All records, comparable."""
    found: dict[str, object] = dict(state.services)
    for key in state.route_revisions:
        record = state.routes.get(key)
        found[key] = record and msgspec.structs.replace(record, grants=tuple(sorted(record.grants, key=lambda one: one.source)))
    return found


def resealed(text: bytes, seal: SnapshotSeal = SEAL) -> bytes:
    """Another body, with the seal and the checksum that belong to it."""
    return sealed(text, seal.sign)


def body_of(content: bytes) -> bytes:
    class Outer(msgspec.Struct):
        body: msgspec.Raw

    return bytes(msgspec.json.decode(gzip.decompress(content), type=Outer).body)


# Damage


def flipped(random_: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(random_.choice((1, 1, 2, 8))):
        changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def truncated(random_: random.Random, text: bytes) -> bytes:
    return text[: random_.randrange(len(text))]


def swapped(random_: random.Random, text: bytes) -> bytes:
    """Two pieces of the text exchanged."""
    first, second, third, fourth = sorted(random_.randrange(len(text) + 1) for _ in range(4))
    return text[:first] + text[third:fourth] + text[second:third] + text[first:second] + text[fourth:]


def doubled(random_: random.Random, text: bytes) -> bytes:
    start, end = sorted(random_.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:end] + text[end:]


DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flipped, truncated, swapped, doubled)


def damaged(random_: random.Random, genuine: list[bytes]) -> bytes:
    """A snapshot that differs from a genuine one, or that belongs to another time or another key."""
    content = random_.choice(genuine)
    damage = random_.choice(DAMAGES)
    match random_.randrange(5):
        case 0:
            return damage(random_, content)
        case 1:  # passes the decompression
            return gzip.compress(damage(random_, gzip.decompress(content)), 1)
        case 2:  # passes the checksum, too
            body = damage(random_, body_of(content))
            outer = msgspec.json.decode(gzip.decompress(content), type=dict[str, msgspec.Raw])
            checksum = hashlib.sha256(body).hexdigest()
            text = b'{"v":1,"checksum":"%b","seal":%b,"body":%b}' % (checksum.encode(), bytes(outer["seal"]), body)
            return gzip.compress(text, 1)
        case 3:  # the seal of one, the body of another
            outer = msgspec.json.decode(gzip.decompress(content), type=dict[str, msgspec.Raw])
            other = msgspec.json.decode(gzip.decompress(random_.choice(genuine)), type=dict[str, msgspec.Raw])
            field = random_.choice(["seal", "body", "checksum"])
            return gzip.compress(msgspec.json.encode({**outer, field: other[field]}), 1)
        case _:
            return resealed(body_of(content), OTHER_SEAL)
