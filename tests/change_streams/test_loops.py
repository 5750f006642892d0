"""A receiver that writes back to the bucket whose changes it gets: stopped by its hops, detected without them."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from postroad.api.topics import LoopDetected
from postroad.client import AsyncPostroad
from postroad.subscriptions.loop_detector import REPEATS, LoopDetector
from postroad.topics.records import StoredTopicMessage
from postroad.topics.rules import CHANGED_AT
from tests.buckets.test_values import make_bucket, put
from tests.change_streams.test_change_streams import MAPPED, TOPIC, copied, messages_of
from tests.gateway import Tenant
from tests.waiting import eventually


class WritingReceiver:
    """Answers each delivery after a write to the key that was changed, `writes_max` times at most."""

    def __init__(self, tenant: Tenant, *, returns_hops: bool, writes_max: int = 100) -> None:
        self._tenant, self._returns_hops, self._left = tenant, returns_hops, writes_max
        self.url, self.statuses = "", list[int]()

    async def handle(self, request: web.Request) -> web.Response:
        headers = {"X_MQ_Hops": request.headers["X-MQ-Hops"]} if self._returns_hops else {}
        if self._left:
            self._left -= 1
            key = request.headers["X-MQ-Published-Subject"]
            self.statuses.append((await put(self._tenant, "/v1/buckets/cart", key, b"again", **headers)).status)
        return web.Response()


@asynccontextmanager
async def writing_back(receiver: WritingReceiver) -> AsyncIterator[WritingReceiver]:
    app = web.Application()
    app.router.add_post("/", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def subscribe(tenant: Tenant, url: str) -> str:
    made = (await tenant.client.post(f"{TOPIC}/subscriptions", {"delivery_type": "http_push", "url": url})).ok(201)
    return f"/v1/subscriptions/{made['id']}"


async def test_a_loop_is_stopped_by_its_hops(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    async with writing_back(WritingReceiver(tenant, returns_hops=True)) as receiver:
        await subscribe(tenant, receiver.url)
        (await put(tenant, bucket, "k")).ok()
        await eventually(lambda: 409 in receiver.statuses, 60)
        assert receiver.statuses == [200] * 15 + [409]
        assert [one.get("hops", 0) for one in await copied(tenant, 16)] == list(range(16))


async def test_a_loop_through_a_live_reader_is_stopped_by_its_hops(tenant: Tenant) -> None:
    """As `examples/buckets/projection.py` writes, but to the bucket that it reads."""
    await make_bucket(tenant, **MAPPED)
    async with AsyncPostroad(tenant.client.url, tenant.key) as postroad:
        await postroad.buckets.put_value("cart", "k", 0)
        followed: list[int] = []
        with pytest.raises(LoopDetected):
            async with aclosing(postroad.topics.follow("cart-events", from_sequence=1)) as messages:
                async for message in messages:
                    followed.append(message.hops)
                    await postroad.buckets.put_value("cart", message.subject, 0, hops=message.hops + 1)
    assert followed == list(range(16))


async def test_a_loop_without_hops_is_suspected(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, **MAPPED)
    async with writing_back(WritingReceiver(tenant, returns_hops=False, writes_max=REPEATS + 5)) as receiver:
        subscription = await subscribe(tenant, receiver.url)
        (await put(tenant, bucket, "user.1")).ok()

        async def is_reported() -> list[dict[str, Any]]:
            return [one for one in await tenant.events("TELEMETRY") if one["event"] == "loop.suspected"]

        [event] = await eventually(is_reported, 60)
        assert event["subject"] == "user.1" and event["topic"] == "cart-events"
        await copied(tenant, REPEATS + 6)

        async def is_shown() -> bool:
            return "loop" in (await tenant.client.get(subscription)).ok()["status"]["summary"]

        await eventually(is_shown, 60)
        (await put(tenant, bucket, "user.1")).ok()  # not in response: the suspicion ends
        await copied(tenant, REPEATS + 7)

        async def is_over() -> bool:
            return not await is_shown()

        await eventually(is_over, 60)
        assert len(await messages_of(tenant)) == REPEATS + 7


# Rules


def _message(subject: str, changed_at_ms: int) -> StoredTopicMessage:
    return StoredTopicMessage(1, 0, subject, "", {CHANGED_AT: str(changed_at_ms)}, None, None, 0, b"")


def is_suspected(detector: LoopDetector) -> bool:
    return detector.suspected == "k"


def test_changes_during_their_own_delivery_are_counted_in_a_row() -> None:
    detector = LoopDetector()
    assert not detector.add(_message("k", 0), 10, 20)
    for number in range(1, REPEATS):
        assert not detector.add(_message("k", 10 * number + 5), 10 * number + 10, 10 * number + 20)
    assert not is_suspected(detector)
    assert detector.add(_message("k", 10 * REPEATS + 5), 10 * REPEATS + 10, 10 * REPEATS + 20)
    assert is_suspected(detector)
    assert not detector.add(_message("other", 0), 0, 1000)
    assert is_suspected(detector)
    assert not detector.add(_message("k", 10 * REPEATS + 500), 0, 0)
    assert not is_suspected(detector)


def test_messages_that_are_no_changes_and_changes_between_deliveries_do_not_count() -> None:
    detector = LoopDetector()
    for number in range(50):
        at = 100 * number
        assert not detector.add(_message("k", at), at + 10, at + 20)
        assert not detector.add(replace(_message("k", at), headers={CHANGED_AT: "x"}), at, at + 1000)
    assert detector.suspected is None
