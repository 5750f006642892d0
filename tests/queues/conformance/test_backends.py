"""The setting `backend` of queues: how it is chosen, fixed and shown, and what it excludes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.api.queues import ENGINE, StrictQueueSettings
from postroad.kernel.configuration import Secret
from postroad.queues.capability import QueuesCapability
from postroad.runtime.embedded_server import free_port
from tests.certificates import Authority
from tests.gateway import Client, Gateway, gateway_settings, running_gateway
from tests.queues.conformance.conftest import Case
from tests.queues.conformance.test_native import only_record
from tests.queues.conformance.test_queues import drained
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq
from tests.waiting import eventually


@pytest.fixture
async def unreachable(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway whose RabbitMQ, the default backend, does not answer."""
    url = Secret(f"amqp://guest:guest@127.0.0.1:{free_port()}/")
    async with running_gateway(gateway_settings(engine_url, rabbitmq_url=url, queue_backend="rabbitmq")) as running:
        yield running


async def test_the_backend_is_shown_and_cannot_be_changed(case: Case) -> None:
    queue = await case.queue()
    client = case.tenant.client
    shown = (await client.get(queue)).ok()
    assert shown["settings"]["backend"] == case.backend
    assert ("amqp" in shown["features"], "peek" in shown["features"]) == (case.backend != ENGINE, case.backend == ENGINE)
    other = "rabbitmq" if case.backend == ENGINE else "engine"
    for response in (await client.put(queue, {"backend": other}), await client.patch(queue, {"backend": other})):
        assert response.problem(422, "invalid-body")["errors"][0]["path"] == "$.backend"
    assert (await client.put(queue, {"maxAttempts": 3})).ok()["settings"]["backend"] == case.backend
    assert (await client.patch(queue, {"backend": None})).ok()["settings"]["backend"] == case.backend


@pytest.mark.parametrize(
    ("feature", "settings"),
    [
        ("ordered", {"ordered": True}),
        ("maxInFlight", {"maxInFlight": 5}),
        ("geo", {"geo": "auto"}),
        ("longLeases", {"visibilityTimeoutMs": 30 * 60_000}),
    ],
)
async def test_settings_that_the_backend_cannot_keep_are_refused(case: Case, feature: str, settings: dict[str, object]) -> None:
    await case.queue("plain")
    response = await case.tenant.client.put("/v1/queues/q", {"backend": case.backend, **settings})
    if case.supports(feature):
        response.ok(201)
    else:
        assert response.problem(422, "invalid-body")["errors"][0]["path"] == f"$.{next(iter(settings))}"


async def test_earlier_releases_can_read_the_record(case: Case) -> None:
    """They refuse settings that they do not know, so during an upgrade the stored ones must not have any."""
    await case.queue()
    fields = [one for one in msgspec.structs.fields(StrictQueueSettings) if one.name != "backend"]
    earlier_settings = msgspec.defstruct(
        "EarlierSettings",
        [(one.name, object, None) for one in fields],
        rename={one.name: one.encode_name for one in fields},
        forbid_unknown_fields=True,
    )
    earlier: Any = msgspec.defstruct("Earlier", [("name", str), ("settings", earlier_settings)])
    record, _ = only_record(case)
    msgspec.json.decode(msgspec.json.encode(record), type=earlier)


@needs_rabbitmq
async def test_later_versions_of_rabbitmq_keep_long_leases(rabbit_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their queues have `x-consumer-timeout`, which Debian's version ignores."""

    async def later() -> tuple[int, int]:
        return 3, 12

    monkeypatch.setattr(rabbit_case.rabbit.backend.rabbit, "version", later)
    long = {"visibilityTimeoutMs": 12 * 3_600_000}
    queue = await rabbit_case.queue("long", **long)
    (await rabbit_case.tenant.client.patch(queue, {"maxAttempts": 3})).ok()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await rabbit_case.elsewhere.pull(queue, waitMs=20_000)
    (await rabbit_case.elsewhere.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], **long})).ok()


@needs_rabbitmq
async def test_extensions_do_not_make_a_lease_longer_than_rabbitmq_keeps_it(rabbit_case: Case) -> None:
    queue, minutes = await rabbit_case.queue(), 60_000
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=20 * minutes)
    clock = rabbit_case.tenant.gateway.clock
    clock.ahead_ms = 19 * minutes
    try:
        body = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 10 * minutes}
        refused = await rabbit_case.tenant.client.post(f"{queue}/extend", body)
        assert refused.problem(422, "invalid-body")["errors"][0]["path"] == "$.visibilityTimeoutMs"
        (await rabbit_case.tenant.client.post(f"{queue}/extend", {**body, "visibilityTimeoutMs": 5 * minutes})).ok()
    finally:
        clock.ahead_ms = 0


async def test_a_lease_is_as_long_as_the_backend_can_keep_it(case: Case) -> None:
    queue, too_long = await case.queue(), {"visibilityTimeoutMs": 30 * 60_000}
    await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    extended = await case.tenant.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], **too_long})
    pulled = await case.tenant.client.post(f"{queue}/pull", too_long)
    for response in (extended, pulled):
        if case.supports("longLeases"):
            response.ok()
        else:
            assert response.problem(422, "invalid-body")["errors"][0]["path"] == "$.visibilityTimeoutMs"


async def test_without_rabbitmq_its_queues_are_refused(engine_url: str, tmp_path: Path) -> None:
    async with running_gateway(gateway_settings(engine_url, data_dir=tmp_path)) as gateway:
        tenant = await gateway.tenant()
        problem = (await tenant.client.put("/v1/queues/q", {"backend": "rabbitmq"})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.backend"
        assert "rabbitmq" not in (await tenant.client.get("/readyz")).ok()["checks"]


async def test_the_default_backend_must_be_reachable_and_others_work_without_it(unreachable: Gateway) -> None:
    tenant = await unreachable.tenant()
    readiness = await tenant.client.get("/readyz")
    assert (readiness.status, readiness.json["checks"]["rabbitmq"]["ok"]) == (503, False)
    refused = await tenant.client.put("/v1/queues/q", {})
    refused.problem(503, "backend-unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    for settings in ({"backend": "engine"}, {"ordered": True}):
        queue = f"/v1/queues/engine-{len(settings)}{'o' if 'ordered' in settings else ''}"
        assert (await tenant.client.put(queue, settings)).ok(201)["settings"]["backend"] == "engine"
    await tenant.publish("/v1/queues/engine-1", 1)


@needs_rabbitmq
async def test_a_blocked_rabbitmq_refuses_messages_and_serves_the_rest(engine_url: str, tmp_path: Path) -> None:
    """A short memory, as RabbitMQ sees it, blocks connections that publish."""
    server = RabbitServer(tmp_path / "rabbitmq", "vm_memory_high_watermark.absolute = 1MB")
    try:
        await asyncio.to_thread(server.start)
        async with running_gateway(gateway_settings(engine_url, rabbitmq_url=Secret(server.url))) as gateway:
            tenant = await gateway.tenant()
            queue = await tenant.queue(backend="rabbitmq")
            refused = await tenant.client.post(f"{queue}/messages", {"payload": 1})
            refused.problem(503, "backend-unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            await tenant.publish(queue, 1, delayMs=3_600_000)
            assert await tenant.pull(queue) == []
            assert (await tenant.stats(queue))["delayed"] == 1
            (await tenant.client.delete(queue)).ok(204)
    finally:
        await asyncio.to_thread(server.stop)


@needs_rabbitmq
async def test_a_silent_rabbitmq_keeps_nobody_waiting(engine_url: str, tmp_path: Path) -> None:
    """It is stopped, not ended, so its connections stay open. Each request has its own deadline, whatever waits before it."""
    server = RabbitServer(tmp_path / "rabbitmq")
    try:
        await asyncio.to_thread(server.start)
        async with running_gateway(gateway_settings(engine_url, rabbitmq_url=Secret(server.url))) as gateway:
            tenant = await gateway.tenant()
            names = [f"q{number}" for number in range(14)]
            queues = [await tenant.queue(name, backend="rabbitmq") for name in names]
            engine = await tenant.queue("engine", backend="engine")
            await tenant.publish(queues[0], 1)
            sampler = gateway.node.platform.use(QueuesCapability).sampler
            server.suspend()
            client = tenant.client
            async with asyncio.timeout(90):  # in turn, they would wait for 10 s each
                waiting = asyncio.gather(
                    *(client.post(f"{queues[0]}/messages", {"payload": number}) for number in range(50)),
                    *(client.get(queue) for queue in queues),
                    *(client.post(f"{queue}/pull", {"waitMs": 5000}) for queue in queues),
                )
                while not waiting.done():
                    await tenant.publish(engine, 1)
                    assert (await tenant.stats(engine))["ready"]
                    assert await sampler.sample_due() >= 1
                for response in await waiting:
                    response.problem(503, "backend-unavailable")
                    assert int(response.headers["retry-after"]) >= 1
                (await client.get(queues[0])).problem(503, "backend-unavailable")
                readiness = (await client.get("/readyz")).ok()["checks"]["rabbitmq"]
                assert "does not answer" in readiness["detail"]
            server.resume()

            async def is_back() -> bool:
                return (await client.get(queues[0])).status == 200 and len(await _pulled(client, queues[0])) > 0

            await eventually(is_back, 60)
    finally:
        server.resume()
        await asyncio.to_thread(server.stop)


async def _pulled(client: Client, queue: str) -> list[Any]:
    response = await client.post(f"{queue}/pull", {"maxMessages": 100})
    return list(response.json.get("messages", []))


@needs_rabbitmq
async def test_the_nodes_are_tried_in_turn_and_their_certificates_are_verified(engine_url: str, tmp_path: Path) -> None:
    authority, stranger, port = Authority(_folder(tmp_path, "ca")), Authority(_folder(tmp_path, "other")), free_port()
    authority.issue()
    server = RabbitServer(
        tmp_path / "rabbitmq",
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {authority.ca_file}",
        f"ssl_options.certfile = {authority.certificate}",
        f"ssl_options.keyfile = {authority.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    )
    own = f"certfile={authority.certificate}&keyfile={authority.key}"
    dead, secure = f"amqp://guest:guest@127.0.0.1:{free_port()}/", f"amqps://guest:guest@127.0.0.1:{port}/?"
    try:
        await asyncio.to_thread(server.start)
        url = Secret(f"{dead},{secure}cafile={authority.ca_file}&{own}")
        async with running_gateway(gateway_settings(engine_url, rabbitmq_url=url)) as gateway:
            tenant = await gateway.tenant()
            queue = await tenant.queue(backend="rabbitmq")
            await tenant.publish(queue, "by TLS")
            [message] = await eventually(lambda: tenant.pull(queue, waitMs=1000))
            assert message["payload"] == "by TLS"
            (await tenant.client.delete(queue)).ok(204)
        for refused in (f"{secure}cafile={stranger.ca_file}&{own}", f"{secure}cafile={authority.ca_file}"):
            async with running_gateway(gateway_settings(engine_url, rabbitmq_url=Secret(refused))) as gateway:
                tenant = await gateway.tenant()
                (await tenant.client.put("/v1/queues/q", {"backend": "rabbitmq"})).problem(503, "backend-unavailable")
    finally:
        await asyncio.to_thread(server.stop)


def _folder(home: Path, name: str) -> Path:
    (home / name).mkdir()
    return home / name


async def test_readiness_does_not_depend_on_a_backend_that_is_not_the_default(case: Case) -> None:
    assert (await case.tenant.client.get("/readyz")).ok()["checks"]["rabbitmq"]["ok"] is True
