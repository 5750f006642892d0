"""Requests to clean up sessions: the stored state decides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from postroad.container import Role
from postroad.jetstream import durable_worker
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import delete_stream, ensure_stream, stream_info
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.ids import new_id
from postroad.sessions.cleanup_requests import STREAM, CleanupRequests, cleanup_stream
from postroad.sessions.service import Sessions
from tests.gateway import ShiftedClock, gateway_settings, running_gateway
from tests.sessions.processes import TTL_SECONDS, Process
from tests.waiting import eventually

TTL_MS = TTL_SECONDS * 1000
OWN, SUBJECT = "CLEANUPS_OF_TESTS", "cleanup_of_tests"  # no gateway consumes it


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("postroad_session_cleanups_total", {"outcome": outcome}) or 0


def body(tenant: str, session: str) -> bytes:
    at = "2026-11-16T00:00:00.000Z"
    return msgspec.json.encode({"v": 1, "tenant": tenant, "session": session, "lastSeenAt": at, "expiresAt": at})


async def ask(process: Process, payload: bytes, tenant: str = "", stream: str = OWN, subject: str = SUBJECT) -> None:
    await process.committers.of(stream).append(PendingMessage(f"{subject}.{tenant or process.tenant}", payload, new_id()))


@pytest.fixture
async def consuming(one: Process, other: Process) -> AsyncIterator[Process]:
    """The other process handles the requests."""
    await delete_stream(one.connection, OWN)
    await ensure_stream(one.connection, cleanup_stream(1, OWN, SUBJECT))
    cleanups = CleanupRequests(other.connection, other.sessions, other.streams, lambda: [other.tenant], OWN, SUBJECT)
    running = asyncio.create_task(cleanups.consume())
    yield other
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def is_drained(process: Process) -> bool:
    info = await stream_info(process.connection, OWN)
    return info is not None and info.state.messages == 0


@pytest.fixture
def outcome(one: Process) -> Callable[[bytes], Any]:
    """Send a request and return the change of the outcome metric."""

    async def outcome_of(payload: bytes, tenant: str = "") -> dict[str, float]:
        names = ("ended", "alive", "gone", "invalid")
        before = {name: counted(name) for name in names}
        await ask(one, payload, tenant)
        await eventually(lambda: is_drained(one))
        return {name: counted(name) - before[name] for name in names if counted(name) != before[name]}

    return outcome_of


async def test_an_expired_session_is_ended(
    one: Process, consuming: Process, clock: ShiftedClock, outcome: Callable[[bytes], Any]
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    assert await outcome(body(one.tenant, "s")) == {"ended": 1}
    assert await one.record("s") is None
    assert await one.subscribers("chat") == {}


async def test_a_live_session_is_kept_regardless_of_the_request(
    one: Process, consuming: Process, clock: ShiftedClock, outcome: Callable[[bytes], Any]
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS - 1000
    await one.touch("s")
    clock.ahead_ms = TTL_MS + 1
    assert await outcome(body(one.tenant, "s")) == {"alive": 1}
    await one.publish("chat", b"1")
    assert await one.read("s") == [b"1"]


async def test_a_deleted_session_is_reported_as_gone(one: Process, consuming: Process, outcome: Callable[[bytes], Any]) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.end("s")
    assert await outcome(body(one.tenant, "s")) == {"gone": 1}


async def test_nothing_is_created_for_a_tenant_without_streams(
    one: Process, consuming: Process, outcome: Callable[[bytes], Any]
) -> None:
    assert await outcome(body(one.tenant, "s")) == {"gone": 1}
    assert await stream_info(one.connection, f"S_{one.tenant}") is None


async def test_a_request_for_an_unknown_tenant_is_dropped(
    one: Process, consuming: Process, outcome: Callable[[bytes], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert await outcome(body("unknown", "s")) == {"invalid": 1}
    assert await stream_info(one.connection, "S_unknown") is None
    assert "cleanup_dropped" in capfd.readouterr().out


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not JSON",
        b"[]",
        b"[" * 100_000,
        b'{"v":2,"tenant":"t","session":"s"}',
        b'{"v":1,"tenant":"t"}',
        b'{"v":1,"tenant":7,"session":"s"}',
        b'{"v":1,"tenant":"t.>","session":"s"}',
        b'{"v":1,"tenant":"t","session":"a b"}',
        b'{"v":1,"tenant":"t","session":"\xff"}',
    ],
    ids=range(10),
)
async def test_an_invalid_request_is_dropped_and_the_next_is_handled(
    one: Process, consuming: Process, outcome: Callable[[bytes], Any], payload: bytes
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    assert await outcome(payload) == {"invalid": 1}
    assert await outcome(body(one.tenant, "s")) == {"alive": 1}


async def test_a_failed_request_is_delivered_again(
    one: Process,
    consuming: Process,
    clock: ShiftedClock,
    outcome: Callable[[bytes], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durable_worker, "_RETRY_MS", 30)
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    end, tries = Sessions.end_if_expired, 0

    async def fails_once(self: Sessions, tenant: str, session: str) -> Any:
        nonlocal tries
        tries += tenant == one.tenant
        if tenant == one.tenant and tries == 1:
            raise EngineUnavailable("away")
        return await end(self, tenant, session)

    monkeypatch.setattr(Sessions, "end_if_expired", fails_once)
    assert await outcome(body(one.tenant, "s")) == {"ended": 1}
    assert tries == 2


async def test_the_delivery_role_handles_requests(engine_url: str, one: Process) -> None:
    settings = gateway_settings(engine_url, session_ttl_seconds=1, session_clean_seconds=3600)
    async with running_gateway(settings, Role.ALL) as gateway:
        tenant = await gateway.tenant()
        (await tenant.client.call("PUT", "/v1/stream/chat", headers={"Content-Type": "text/plain"})).ok(201)
        wanted = {"sessionId": "s", "streamId": "chat"}
        (await tenant.client.post(f"/v1/{tenant.id}/subscribe", wanted)).ok()
        gateway.clock.ahead_ms = 2000
        before = counted("ended")

        async def ended() -> bool:
            """Send again: another gateway of the tests, whose clock is not ahead, may handle it and find the session alive."""
            await ask(one, body(tenant.id, "s"), tenant.id, STREAM, "cleanup")
            return counted("ended") > before

        await eventually(ended)

        async def is_recorded() -> bool:
            return any(event["event"] == "session.ended" for event in await tenant.events("TELEMETRY"))

        await eventually(is_recorded)
