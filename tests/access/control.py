"""Calls of the control plane that several tests use."""

import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from postroad.governance.audit import AUDIT_STREAM
from postroad.jetstream import stream_reader
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from tests.gateway import Answer, Client, EventReader, Gateway, Tenant
from tests.waiting import eventually

KEYS = "/api/control/keys"
EVERY_SCOPE = [str(scope) for scope in ALL_SCOPES]
SECRETS = "/api/control/jwt-secrets"
TENANTS = "/api/control/tenants"
INVITES = "/api/control/invites"
CLAIM = "/api/control/claim"
AUDIT = "/api/control/audit"
SETTINGS = "/v1/admin/settings"
DEFAULTS = "/api/control/settings"
STREAM = "/v1/telemetry/stream"
WHOAMI = "/v1/whoami"

AT_ONCE = 15.0  # a deadline in seconds


def fresh(prefix: str = "t") -> str:
    """An unused tenant id."""
    return f"{prefix}-{uuid.uuid4().hex[:16]}"


def stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


async def patch(client: Client, path: str, **body: object) -> Answer:
    return await client.call("PATCH", path, body)


async def new_key_by(client: Client, **body: object) -> tuple[str, dict[str, Any]]:
    """Create a key; return its text and its record."""
    made = (await client.post(KEYS, {"name": "made", "scopes": EVERY_SCOPE, **body})).ok(201)
    return made["key"], made["record"]


async def status_of(client: Client, path: str = WHOAMI) -> int:
    return (await client.get(path)).status


async def becomes(status: int, *clients: Client, path: str = WHOAMI, seconds: float = AT_ONCE) -> None:
    """Wait until all of them have this status."""

    async def are_all() -> bool:
        return all([await status_of(client, path) == status for client in clients])

    await eventually(are_all, seconds)


async def ends(reader: EventReader, seconds: float = AT_ONCE) -> None:
    """Wait until the response ends."""
    while await reader.next(seconds) is not None:
        pass


async def entries_of(gateway: Gateway, tenant: str = ">") -> list[dict[str, Any]]:
    """Stored audit entries of a tenant, or of all, oldest first."""
    found: list[dict[str, Any]] = []
    following, is_end = 1, False
    while not is_end:
        page = await stream_reader.read(gateway.node.platform.connection, AUDIT_STREAM, f"audit.{tenant}", following, 1000)
        found += [msgspec.json.decode(entry.payload) for entry in page.entries]
        following, is_end = page.next_sequence, page.is_end
    return found


async def raw_bucket(gateway: Gateway, bucket: str) -> bytes:
    """The stored values of a bucket."""
    found, following, is_end = b"", 1, False
    while not is_end:
        page = await stream_reader.read(gateway.node.platform.connection, f"KV_{bucket}", f"$KV.{bucket}.>", following, 1000)
        found += b"".join(entry.subject.encode() + entry.payload + repr(entry.headers).encode() for entry in page.entries)
        following, is_end = page.next_sequence, page.is_end
    return found


def actor_of(tenant: Tenant, *, is_platform: bool = False) -> RequestContext:
    caller = Caller(tenant.id, tenant.record.id, frozenset(ALL_SCOPES), is_platform=is_platform)
    return RequestContext(caller, "r-1", "192.0.2.1")
