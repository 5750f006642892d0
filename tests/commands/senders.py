"""Services that send commands, for tests: registration, envelopes and their signatures."""

import uuid
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.kernel.clock import now_ms, rfc3339
from tests.gateway import Answer, Client, Gateway, Tenant


def envelope(
    secret: str,
    *,
    target: str = "bot",
    name: str = "post",
    payload: bytes = b'{"text":"hi"}',
    version: str = "hmac-v1",
    timestamp: str | None = None,
    command_id: str | None = None,
    source: str | None = None,
) -> dict[str, Any]:
    """A valid envelope, signed for `source` if it is given. `payload` is JSON text."""
    timestamp, command_id = timestamp or rfc3339(now_ms()), command_id or str(uuid.uuid4())
    metadata = {
        "id": command_id,
        "timestamp": timestamp,
        "type": "snavio.command-sent",
        "hmac": payload_hmac(secret.encode(), payload, timestamp, name),
        "version_id": version,
    }
    if source is not None:
        metadata["signature"] = command_signature(
            secret.encode(),
            command_id=command_id,
            source=source,
            target=target,
            name=name,
            timestamp=timestamp,
            payload=payload,
        )
    return {"metadata": metadata, "command": {"target": target, "name": name, "payload": msgspec.Raw(payload)}}


@dataclass(frozen=True, slots=True)
class Sender:
    """A registered service with a key that it trusts."""

    tenant: Tenant
    service: str
    secret: str
    version: str = "hmac-v1"

    @property
    def source(self) -> str:
        return f"{self.tenant.id}/{self.service}"

    @property
    def client(self) -> Client:
        return self.tenant.client.with_headers(**{"X-Postroad-Service": self.service})

    def at(self, gateway: Gateway) -> "Sender":
        """The same sender at another gateway."""
        return replace(self, tenant=replace(self.tenant, client=gateway.with_key(self.tenant.key), gateway=gateway))

    async def send(self, **fields: Any) -> Answer:
        """Send a command, by default at the time of the gateway's clock."""
        fields.setdefault("timestamp", rfc3339(self.tenant.gateway.clock()))
        return await self.client.post("/v1/commands", envelope(self.secret, version=self.version, **fields))

    async def send_raw(self, body: bytes) -> Answer:
        return await self.client.post("/v1/commands", data=body, headers={"Content-Type": "application/json"})


async def register_sender(tenant: Tenant, service: str = "billing") -> Sender:
    (await tenant.client.put(f"/v1/services/{service}", {"trustedKeys": [tenant.record.id]})).ok(201)
    config = (await tenant.client.get("/v1/tenant-config")).ok()
    [found] = [one for one in config["services"] if one["name"] == service]
    return Sender(tenant, service, found["secrets"][0]["secret"], found["secrets"][0]["versionId"])


async def register_target(tenant: Tenant, service: str = "bot", command: str = "post", **route: object) -> str:
    """A queue and a route to it; returns the path of the queue."""
    queue = f"{service}-{command}"
    answer = await tenant.client.put(f"/v1/queues/{queue}", {"maxAttempts": 3})
    assert answer.status in (200, 201), answer.body
    answer = await tenant.client.put(f"/v1/services/{service}", {})
    assert answer.status in (200, 201), answer.body
    (await tenant.client.put(f"/v1/routes/{service}/{command}", {"queue": queue, **route})).ok(201)
    return f"/v1/queues/{queue}"


async def grant(tenant: Tenant, source: str, service: str = "bot", command: str = "post", **fields: object) -> None:
    answer = await tenant.client.put(f"/v1/grants/{service}/{command}/{source}", fields)
    assert answer.status in (200, 201), answer.body


async def outcomes(tenant: Tenant) -> list[dict[str, Any]]:
    """The outcome events of the tenant's commands."""
    return [one for one in await tenant.events("COMMANDS") if one["event"].startswith("snavio.command.")]
