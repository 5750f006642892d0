"""A whole installation, as an operator starts it, with two workers; and clients that send plain requests to it."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.gateway import Client, session
from tests.installation import Installation
from tests.rabbitmq_server import RabbitServer, rabbit_server

__all__ = ["rabbit_server"]


@dataclass(frozen=True, slots=True)
class Project:
    """A tenant of the installation, its root for sessions, and a client with a key of all scopes."""

    id: str
    root: str
    client: Client
    admin: Client

    async def key(self, *scopes: str, **more: object) -> Client:
        body = {"name": "contract", "scopes": list(scopes), **more}
        made = (await self.client.post("/api/control/keys", body)).ok(201)
        return Client(self.client.url, self.client.session, {"Authorization": f"ApiKey {made['key']}"})


@pytest.fixture(scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory, rabbit_server: RabbitServer) -> AsyncIterator[Installation]:
    environment = {"POSTROAD_RABBITMQ_URL": rabbit_server.url}
    installation = Installation(tmp_path_factory.mktemp("contract"), "up", "--workers", "2", **environment)
    try:
        yield await installation.start().ready()
    finally:
        installation.end()


@pytest.fixture
async def project(running: Installation) -> AsyncIterator[Project]:
    """A new tenant."""
    async with session() as opened:
        admin = Client(running.url, opened, {"Authorization": f"Bearer {running.credentials['admin_key']}"})
        name = f"t-{uuid.uuid4().hex[:16]}"
        (await admin.post("/api/control/tenants", {"id": name})).ok(201)
        scopes = ["publish", "consume", "read", "write", "admin"]
        made = (await admin.post("/api/control/keys", {"name": "all", "scopes": scopes}, headers={"X-Postroad-Tenant": name})).ok(
            201
        )
        client = Client(running.url, opened, {"Authorization": f"ApiKey {made['key']}"})
        yield Project(name, f"/v1/{name}", client, admin)
