"""Behaviour of nats-server that delayed messages depend on."""

import asyncio

import pytest
from tests.jetstream.streams import committer_of, make_stream, new_message
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Delivery
from postroad.jetstream.management import purge_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.ids import new_id


async def _make_queue(connection: Connection, name: str) -> PullConsumer:
    await make_stream(connection, name, retention="workqueue", allow_msg_schedules=True, allow_msg_ttl=True)
    await ensure_work_consumer(connection, name, "work", f"{name}.ready")
    return PullConsumer(connection, name, "work")


def _later(name: str, due_ms: int, *headers: tuple[str, str], message_id: str | None = None) -> PendingMessage:
    schedule = [("Nats-Schedule", f"@at {rfc3339(due_ms)}"), ("Nats-Schedule-Target", f"{name}.ready"), ("X-Own", "value")]
    return PendingMessage(f"{name}.later.1", b"delayed", message_id or new_id(), header_lines([*schedule, *headers]))


async def _arrives(queue: PullConsumer, seconds: float = 30) -> list[Delivery]:
    async with asyncio.timeout(seconds + 5):
        return await queue.pull(10, seconds)


@pytest.mark.parametrize(
    ("given", "delivered"),
    [
        ({}, {}),
        ({"Nats-TTL": "1000s"}, {}),
        ({"Nats-Schedule-TTL": "1000s"}, {"Nats-TTL": "1000s"}),
        ({"Nats-TTL": "500s", "Nats-Schedule-TTL": "1000s"}, {"Nats-TTL": "1000s"}),
        ({"Nats-Expected-Last-Subject-Sequence": "0"}, {}),
    ],
    ids=["plain", "its own TTL", "a TTL for what it delivers", "both", "conditional"],
)
async def test_a_delayed_message_arrives_once_on_time_with_its_own_headers(
    connection: Connection, name: str, given: dict[str, str], delivered: dict[str, str]
) -> None:
    queue = await _make_queue(connection, name)
    due_ms = now_ms() + 200
    later = _later(name, due_ms, *given.items())
    assert await committer_of(connection, name).append(later) == PublishAck(1)
    assert await queue.pull(1, 0) == []
    [found] = await _arrives(queue)
    assert 0 <= now_ms() - due_ms < 500
    assert (found.payload, found.ref.attempt) == (b"delayed", 1)
    assert found.ref.stored_at_ns // 1_000_000 >= due_ms, "its time is that of its delivery"
    ready = await stream_reader.last(connection, name, f"{name}.ready")
    assert ready is not None
    assert ready.headers == {"X-Own": "value", "Nats-Scheduler": f"{name}.later.1", "Nats-Schedule-Next": "purge", **delivered}
    assert await stream_reader.last(connection, name, f"{name}.later.1") is None
    await queue.acknowledge([(found.ref, ACK)])
    assert await _arrives(queue, 0.2) == []


async def test_a_repeated_delayed_message_is_a_duplicate_before_and_after_its_delivery(connection: Connection, name: str) -> None:
    queue = await _make_queue(connection, name)
    committer = committer_of(connection, name)
    later = _later(name, now_ms() + 200, message_id="same")
    await committer.append(later)
    assert await committer.append(later) == PublishAck(1, is_duplicate=True, is_known=True)
    [found] = await _arrives(queue)
    assert await committer.append(later) == PublishAck(1, is_duplicate=True, is_known=True)
    await queue.acknowledge([(found.ref, ACK)])
    assert await _arrives(queue, 0.2) == []


async def test_a_delayed_message_can_be_part_of_a_batch(connection: Connection, name: str) -> None:
    queue = await _make_queue(connection, name)
    due_ms = now_ms() + 200
    await committer_of(connection, name).append_together([_later(name, due_ms), new_message(f"{name}.ready", b"now")])
    [now] = await _arrives(queue)
    assert now.payload == b"now" and now_ms() < due_ms
    [found] = await _arrives(queue)
    assert found.payload == b"delayed" and 0 <= now_ms() - due_ms < 500


async def test_an_overdue_message_arrives_soon(connection: Connection, name: str) -> None:
    queue = await _make_queue(connection, name)
    await committer_of(connection, name).append(_later(name, now_ms() - 60_000))
    [found] = await _arrives(queue, 2)
    assert found.payload == b"delayed"


async def test_a_delayed_message_that_is_removed_does_not_arrive(connection: Connection, name: str) -> None:
    queue = await _make_queue(connection, name)
    await committer_of(connection, name).append(_later(name, now_ms() + 200))
    assert await purge_stream(connection, name, f"{name}.later.1") == 1
    assert await _arrives(queue, 0.4) == []


async def test_a_delayed_message_whose_ttl_expires_first_never_arrives(connection: Connection, name: str) -> None:
    """`Nats-TTL` limits the schedule, `Nats-Schedule-TTL` the delivered message."""
    queue = await _make_queue(connection, name)
    await committer_of(connection, name).append(_later(name, now_ms() + 1500, ("Nats-TTL", "1s")))
    assert await _arrives(queue, 1.8) == []


@pytest.mark.parametrize("is_due_meanwhile", [False, True])
async def test_a_delayed_message_survives_a_kill_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str, is_due_meanwhile: bool
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    due_ms = now_ms() + (100 if is_due_meanwhile else 500)
    await committer_of(connection, name).append(_later(name, due_ms))
    own_server.kill()
    await eventually(lambda: not connection.is_up and (now_ms() > due_ms or not is_due_meanwhile))
    own_server.start()
    async with asyncio.timeout(30):
        await connection.wait_up()
    [found] = await _arrives(queue)
    assert found.payload == b"delayed"
    assert now_ms() >= due_ms
    assert await _arrives(queue, 0.2) == []
