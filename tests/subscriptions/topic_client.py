"""A topic and its subscriptions, as a client uses them."""

from dataclasses import dataclass
from typing import Any

from tests.gateway import Tenant


@dataclass(frozen=True, slots=True)
class TopicClient:
    tenant: Tenant
    name: str = "orders"

    async def create(self, **settings: object) -> None:
        (await self.tenant.client.put(f"/v1/topics/{self.name}", settings)).ok(201)

    async def publish(self, subject: str = "created", payload: object = None, **more: object) -> int:
        sent = {"subject": subject, "payload": {} if payload is None else payload, **more}
        if "body_b64" in more:
            del sent["payload"]
        sequence: int = (await self.tenant.client.post(f"/v1/topics/{self.name}/messages", sent)).ok(201)["sequence"]
        return sequence

    async def publish_many(self, count: int, subject: str = "created") -> list[int]:
        messages = [{"subject": subject, "payload": {"n": index}} for index in range(count)]
        results = (await self.tenant.client.post(f"/v1/topics/{self.name}/messages/batch", {"messages": messages})).ok()
        return [one["sequence"] for one in results["results"]]

    async def subscribe(self, url: str | None = None, **more: object) -> dict[str, Any]:
        settings = {"delivery_type": "http_push", **({"url": url} if url else {}), **more}
        made: dict[str, Any] = (await self.tenant.client.post(f"/v1/topics/{self.name}/subscriptions", settings)).ok(201)
        return made

    async def show(self, subscription: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = (await self.tenant.client.get(f"/v1/subscriptions/{subscription['id']}")).ok()
        return shown

    async def status(self, subscription: dict[str, Any]) -> dict[str, Any]:
        status: dict[str, Any] = (await self.show(subscription))["status"]
        return status

    async def attempts(self, subscription: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.tenant.client.get(f"/v1/subscriptions/{subscription['id']}/attempts")).ok()[
            "attempts"
        ]
        return found

    async def dead(self, subscription: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.tenant.client.get(f"/v1/subscriptions/{subscription['id']}/dlq")).ok()[
            "messages"
        ]
        return found
