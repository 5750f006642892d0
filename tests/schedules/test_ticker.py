"""The ticker on the real engine: one message per tick, whatever is interrupted, and however many tickers run."""

import asyncio
import contextlib
import itertools
import types
from collections.abc import Coroutine, Generator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable, PostroadError
from postroad.schedules.capability import SchedulesCapability
from postroad.schedules.ticker import Ticker
from tests.gateway import Gateway, ShiftedClock, Tenant
from tests.schedules.test_cron import BERLIN, MINUTE_MS, is_tick
from tests.tiers import long_runs
from tests.waiting import eventually

HOUR_MS = 3_600_000


def capability(gateway: Gateway) -> SchedulesCapability:
    return gateway.node.platform.use(SchedulesCapability)


async def scheduled(tenant: Tenant, **settings: Any) -> str:
    """Create the queue `q` and a schedule of it; return the key of its record."""
    if (await tenant.client.get("/v1/queues/q")).status == 404:
        await tenant.queue()
    (await tenant.client.put("/v1/schedules/s", {"queue": "q", **settings})).ok(201)
    return f"{tenant.id}.s"


async def shown(tenant: Tenant) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get("/v1/schedules/s")).ok()
    return found


async def published_ticks(tenant: Tenant) -> list[str]:
    """The ticks of the messages in the queue, in order."""
    found = (await tenant.client.get("/v1/queues/q/messages?limit=1000")).ok()["messages"]
    return [one["headers"]["postroad-scheduled-at"] for one in found]


async def fire_all(gateway: Gateway, key: str, ticker: Ticker | None = None) -> None:
    """Fire until nothing is due, and try again after errors, as a leader does."""
    table, ticker = capability(gateway).table, ticker or capability(gateway).new_ticker()
    while True:
        before = table.get(key)
        has_open_claim = before is not None and ticker._has_open_claim(before)
        with contextlib.suppress(Conflict, EngineUnavailable):
            await ticker.fire(key)
            if table.get(key) == before and not has_open_claim:
                return
        await asyncio.sleep(0.002)


@types.coroutine
def killed_after(work: Coroutine[Any, Any, None], steps: int) -> Generator[Any, Any, bool]:
    """Run until the work waits for the `steps`-th time, and abandon it there. True if it ended before."""
    send: Any = lambda: work.send(None)  # noqa: E731
    while True:
        try:
            waits_for = send()
        except (StopIteration, PostroadError):
            return True
        if steps == 0:
            work.close()
            return False
        steps -= 1
        try:
            yield waits_for
            send = lambda: work.send(None)  # noqa: E731
        except BaseException as error:
            send = lambda error=error: work.throw(error)  # noqa: E731


async def test_a_tick_publishes_one_message_and_its_job(tenant: Tenant, gateway: Gateway, clock: ShiftedClock) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, payload={"a": [1]})
    await fire_all(gateway, key)
    assert await published_ticks(tenant) == []
    tick = (await shown(tenant))["nextRunAt"]
    clock.ahead_ms = HOUR_MS
    await fire_all(gateway, key)
    await fire_all(gateway, key)
    assert await published_ticks(tenant) == [tick]
    now = await shown(tenant)
    assert (now["lastRunAt"], now["firedCount"], now["missedCount"], now["state"]) == (tick, 1, 0, "active")
    [job] = {one["job_id"] for one in await tenant.events() if one["event"] == "job.queued"}
    [message] = await tenant.pull("/v1/queues/q")
    assert message["payload"] == {"a": [1]} and message["jobId"] == job

    async def fired() -> bool:
        return [one["scheduled_at"] for one in await tenant.events("TELEMETRY") if one["event"] == "schedule.fired"] == [tick]

    await eventually(fired)


async def test_a_kill_at_any_moment_neither_loses_nor_doubles_a_tick(
    tenant: Tenant, gateway: Gateway, clock: ShiftedClock
) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    for steps in itertools.count():
        ticker = capability(gateway).new_ticker()
        await ticker.fire(key)  # knows that the previous tick was published
        clock.ahead_ms += HOUR_MS
        has_ended = await killed_after(ticker.fire(key), steps)
        await fire_all(gateway, key)  # the next leader
        ticks = await published_ticks(tenant)
        assert len(ticks) == len(set(ticks)) == steps + 1, f"killed at step {steps}"
        if has_ended:
            break
    assert steps > 3
    jobs = [one["job_id"] for one in await tenant.events() if one["event"] == "job.queued"]
    assert len(set(jobs)) == len(ticks)


async def test_several_tickers_at_once_publish_each_tick_once(
    tenant: Tenant, gateway: Gateway, second_gateway: Gateway, clock: ShiftedClock
) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    await eventually(lambda: capability(second_gateway).table.get(key))
    for count in range(1, 6):
        clock.ahead_ms = second_gateway.clock.ahead_ms = count * HOUR_MS
        both = [gateway, second_gateway] * 2
        await asyncio.gather(*(fire_all(one, key) for one in both))
        assert len(await published_ticks(tenant)) == len(set(await published_ticks(tenant))) == count
    second_gateway.clock.ahead_ms = 0


async def test_a_claim_that_was_published_long_ago_is_not_published_again(
    tenant: Tenant, gateway: Gateway, clock: ShiftedClock
) -> None:
    """The message was consumed and the engine remembers no message ids; only the marker of the sequence is left."""
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    clock.ahead_ms = HOUR_MS
    await fire_all(gateway, key)
    [message] = await tenant.pull("/v1/queues/q")
    await tenant.ack("/v1/queues/q", message["receiptId"])
    (await tenant.client.post("/v1/queues/q/purge", {})).ok()
    for _ in range(3):
        await fire_all(gateway, key)  # a new leader, which does not know whether the claim was published
    assert await published_ticks(tenant) == []


@pytest.mark.parametrize(("policy", "fired", "missed"), [("none", 0, 3), ("last", 1, 2), ("all", 3, 0)])
async def test_ticks_missed_while_no_process_ran_follow_the_policy(
    tenant: Tenant, gateway: Gateway, clock: ShiftedClock, policy: str, fired: int, missed: int
) -> None:
    key = await scheduled(tenant, everyMs=2 * HOUR_MS, catchUp=policy)
    clock.ahead_ms = 7 * HOUR_MS
    await fire_all(gateway, key)
    assert len(await published_ticks(tenant)) == fired
    now = await shown(tenant)
    assert (now["firedCount"], now["missedCount"]) == (fired, missed)


async def test_ticks_of_a_pause_are_never_published(tenant: Tenant, gateway: Gateway, clock: ShiftedClock) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    (await tenant.client.post("/v1/schedules/s/pause")).ok()
    clock.ahead_ms = 5 * HOUR_MS + 1000
    await fire_all(gateway, key)
    (await tenant.client.post("/v1/schedules/s/resume")).ok()
    await fire_all(gateway, key)
    assert await published_ticks(tenant) == []
    clock.ahead_ms += HOUR_MS
    await fire_all(gateway, key)
    assert len(await published_ticks(tenant)) == 1


async def test_a_schedule_without_its_queue_fails_and_recovers(tenant: Tenant, gateway: Gateway, clock: ShiftedClock) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS)
    assert (await tenant.client.delete("/v1/queues/q")).status == 204
    clock.ahead_ms = HOUR_MS
    ticker = capability(gateway).new_ticker()
    for _ in range(2):
        with pytest.raises(PostroadError, match="no queue"):
            await ticker.fire(key)
    failing = await shown(tenant)
    assert (failing["state"], failing["error"]["code"], failing["firedCount"]) == ("failing", "queue-not-found", 0)
    assert "lastRunAt" not in failing
    await tenant.queue()
    await fire_all(gateway, key, ticker)
    recovered = await shown(tenant)
    assert (recovered["state"], recovered["firedCount"]) == ("active", 1)
    assert len(await published_ticks(tenant)) == 1


async def test_a_change_of_the_times_applies_from_now_on(tenant: Tenant, gateway: Gateway, clock: ShiftedClock) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    clock.ahead_ms = 2 * HOUR_MS
    (await tenant.client.put("/v1/schedules/s", {"queue": "q", "everyMs": 2 * HOUR_MS, "catchUp": "all"})).ok()
    await fire_all(gateway, key)
    assert await published_ticks(tenant) == []
    clock.ahead_ms = 4 * HOUR_MS + 1000
    await fire_all(gateway, key)
    assert len(await published_ticks(tenant)) == 1


async def test_a_deleted_schedule_publishes_nothing_even_if_its_ticker_was_held_up(
    tenant: Tenant, gateway: Gateway, clock: ShiftedClock
) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    clock.ahead_ms = HOUR_MS
    await fire_all(gateway, key)
    record = capability(gateway).table.get(key)
    assert record is not None and record.claimed_ms is not None
    assert (await tenant.client.delete("/v1/schedules/s")).status == 204
    await capability(gateway).new_ticker()._publish(record, record.claimed_ms + HOUR_MS)
    assert len(await published_ticks(tenant)) == 1


async def test_the_marker_of_a_sequence_does_not_accumulate(tenant: Tenant, gateway: Gateway, clock: ShiftedClock) -> None:
    key = await scheduled(tenant, everyMs=HOUR_MS, catchUp="all")
    clock.ahead_ms = 5 * HOUR_MS
    await fire_all(gateway, key)
    info = await stream_info(gateway.node.platform.connection, f"Q_{tenant.id}__q")
    assert info is not None and info.state.messages == 5 + 1


async def test_a_running_ticker_follows_changes(tenant: Tenant, gateway: Gateway) -> None:
    running = asyncio.create_task(capability(gateway).new_ticker().run())
    try:
        await scheduled(tenant, everyMs=1000, startAt=rfc3339(now_ms() - 500), catchUp="all")

        async def fired(count: int) -> bool:
            return len(await published_ticks(tenant)) >= count

        await eventually(lambda: fired(2))
        (await tenant.client.post("/v1/schedules/s/pause")).ok()
        ticks = await published_ticks(tenant)
        assert len(ticks) == len(set(ticks))
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


steps = st.lists(
    st.tuples(st.integers(1, 240), st.sampled_from(["run", "kill", "two"]), st.integers(0, 20)), min_size=4, max_size=10
)


@pytest.mark.slow
@long_runs(20)
@given(
    steps,
    st.sampled_from(["2027-03-28T00:00:30+01:00", "2027-10-31T00:00:30+02:00"]),
    st.sampled_from(["*/30 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 */2 * * *"]),
)
async def test_over_changes_of_daylight_saving_and_kills_every_tick_is_published_once(
    gateway: Gateway, second_gateway: Gateway, steps: list[tuple[int, str, int]], start: str, expression: str
) -> None:
    start_ms = int(datetime.fromisoformat(start).timestamp() * 1000)

    def move_to(minute: int) -> int:
        """The clocks stand still until the next move: on a busy machine a step can take longer than the time to the next tick."""
        gateway.clock.frozen_ms = second_gateway.clock.frozen_ms = start_ms + minute * MINUTE_MS
        return start_ms + minute * MINUTE_MS

    try:
        move_to(0)
        tenant = await gateway.tenant()
        key = await scheduled(tenant, cron=expression, timeZone=BERLIN, catchUp="all")
        await eventually(lambda: capability(second_gateway).table.get(key))
        minute = now = 0
        for passed, action, kill_at in steps:
            minute += passed
            now = move_to(minute)
            if action == "kill":
                await killed_after(fire_all(gateway, key), kill_at)
            elif action == "two":
                await asyncio.gather(fire_all(gateway, key), fire_all(second_gateway, key))
            else:
                await fire_all(gateway, key)
        await fire_all(second_gateway, key)
        first = start_ms - start_ms % MINUTE_MS
        expected = [at for at in range(first + MINUTE_MS, now + 1, MINUTE_MS) if is_tick(expression, BERLIN, at)]
        assert await published_ticks(tenant) == [rfc3339(at) for at in expected]
    finally:
        gateway.clock.frozen_ms = second_gateway.clock.frozen_ms = None
