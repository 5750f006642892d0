"""Publishers and consumers of the demo's queues, and redrives of dead letters."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from postroad.client import Acked, AsyncPostroad, Message
from postroad.demo.clock import DemoClock
from postroad.demo.counters import MAX_ATTEMPTS_REACHED, QueueCounters
from postroad.demo.plan import Decision, PlannedMessage, decide, plan_messages, processing_seconds, seeded_random
from postroad.demo.scenarios import QueueScenario, Redrive

_BATCH_MAX = 200
_WAIT_MS, _DRAIN_WAIT_MS = 1000, 100
_LEASE_MS = 60_000  # longer than any processing, so that no lease expires and every delivery is counted
_REDRIVE_SECONDS = 15.0
_LATE_SECONDS = 3.0
_AHEAD_SECONDS = 0.1


async def publish(clock: DemoClock, client: AsyncPostroad, tenant: str, scenario: QueueScenario, counters: QueueCounters) -> None:
    """Publish the planned messages at their times; those due together go in one call."""
    planned = plan_messages(clock.seed, tenant, scenario, clock.seconds, clock.rate)
    sent = 0
    while sent < len(planned) and await clock.wait_until(planned[sent].at):
        await clock.throttle()
        now = clock.now
        due = [one for one in planned[sent : sent + _BATCH_MAX] if one.at <= now]
        batch = await client.queues.publish_batch(scenario.name, [_body(clock, tenant, one) for one in due])
        sent += len(due)
        counters.counts["published"] += batch.published
        if scenario.delay_ms:
            counters.counts["delayed"] += batch.published


def _body(clock: DemoClock, tenant: str, message: PlannedMessage) -> dict[str, object]:
    headers = {"outcome": message.outcome.value} | ({"reason": message.reason} if message.reason else {})
    return {
        "payload": {"tenant": tenant, "number": message.number, "text": message.text},
        "headers": headers,
        "delayMs": message.delay_ms,
        "correlationId": f"demo-{message.number // 10}",
        "idempotencyKey": f"{clock.run}-{message.number}",
    }


async def consume(
    clock: DemoClock, client: AsyncPostroad, tenant: str, scenario: QueueScenario, number: int, counters: QueueCounters
) -> None:
    """Run one of the queue's consumers until the queue is empty; a slow one, or one that stops earlier, leaves a backlog."""
    consumer = scenario.consumer
    if consumer is None:
        return
    random = seeded_random(clock.seed, tenant, scenario.name, f"consumer {number}")
    is_slow = consumer.capacity < 1
    stops_at = consumer.until * clock.seconds if consumer.until < 1 else float("inf")
    while not (clock.is_ended or (clock.is_draining and is_slow) or clock.now >= stops_at):
        is_draining = clock.is_draining
        if is_slow and counters.counts["delivered"] >= consumer.capacity * counters.counts["published"]:
            await clock.sleep(_AHEAD_SECONDS, until_drain=True)  # on a slow machine the publishers may be behind their plan
            continue
        await clock.throttle()
        pulled = await client.queues.pull(
            scenario.name,
            max_messages=consumer.batch,
            visibility_timeout_ms=_LEASE_MS,
            wait_ms=_DRAIN_WAIT_MS if is_draining else _WAIT_MS,
        )
        counters.counts["delivered"] += len(pulled.messages)
        if not pulled.messages and is_draining:
            return
        for _ in pulled.messages:
            await clock.sleep(processing_seconds(random, scenario, clock.rate), until_drain=is_slow)
        await _reply(clock, client, scenario, pulled.messages, counters)


async def _reply(
    clock: DemoClock, client: AsyncPostroad, scenario: QueueScenario, leased: Sequence[Message], counters: QueueCounters
) -> None:
    by_decision: dict[Decision, list[Message]] = defaultdict(list)
    for message in leased:
        by_decision[decide(message.headers, message.attempt, scenario.max_attempts, clock.repaired)].append(message)
    for decision, messages in by_decision.items():
        await clock.throttle()
        if decision.action == "ack":
            acked = await client.queues.ack_many(scenario.name, messages)
        else:
            action: Literal["dlq", "retry"] = "dlq" if decision.action == "dlq" else "retry"
            acked = await client.queues.nack_many(scenario.name, messages, action=action, reason=decision.reason)
        _count(decision, messages, acked, counters)


def _count(decision: Decision, messages: Sequence[Message], acked: Acked, counters: QueueCounters) -> None:
    for message, result in zip(messages, acked.results, strict=True):
        if not result.ok:
            counters.counts["lost"] += 1
        elif decision.action == "ack":
            counters.counts["done"] += 1
        elif decision.action == "dlq":
            counters.count_dead(decision.reason, message.attempt)
        elif decision.is_last:
            counters.count_dead(decision.reason or MAX_ATTEMPTS_REACHED, message.attempt)
        else:
            counters.counts["retried"] += 1


async def redrive(clock: DemoClock, client: AsyncPostroad, scenario: Redrive, counters: QueueCounters) -> None:
    """Repair the cause of rejected messages and redrive them. A redrive that has begun is awaited, also when the run ends."""
    if not await clock.wait_until(scenario.at * clock.seconds):
        return
    while not counters.dead_reasons[scenario.reason] and clock.now < clock.seconds + _LATE_SECONDS and not clock.is_draining:
        await clock.sleep(_LATE_SECONDS / 10, until_drain=True)  # on a slow machine none may be dead yet
    clock.repaired.add(scenario.reason)
    await clock.throttle()
    begun = await client.queues.dead_letters.redrive(scenario.queue, reason=scenario.reason, rate_per_second=50)
    if begun.task is not None:
        ended = await client.tasks.wait(begun.task, timeout=_REDRIVE_SECONDS)
        counters.counts["redriven"] += ended.progress.moved
