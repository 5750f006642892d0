"""Those who publish to the demo's queues, those who consume, and somebody who puts dead letters back."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from postroad.client import Acked, AsyncPostroad, Message
from postroad.demo.clock import Stage
from postroad.demo.counters import MAX_ATTEMPTS_REACHED, QueueTally
from postroad.demo.plan import PlannedMessage, Verdict, draws, messages, verdict, working_seconds
from postroad.demo.scenarios import QueueStory, Redrive

_BATCH_MAX = 200
_WAIT_MS, _LAST_WAIT_MS = 1000, 100
_LEASE_MS = 60_000  # longer than anybody takes, so that no lease runs out and every delivery is known
_REDRIVE_SECONDS = 15.0


async def publish(stage: Stage, client: AsyncPostroad, tenant: str, story: QueueStory, tally: QueueTally) -> None:
    """All that is planned, each when its time has come; what is due together goes in one call."""
    planned = messages(stage.seed, tenant, story, stage.seconds, stage.rate)
    sent = 0
    while sent < len(planned) and await stage.until(planned[sent].at):
        await stage.turn()
        now = stage.now
        due = [one for one in planned[sent : sent + _BATCH_MAX] if one.at <= now]
        batch = await client.queues.publish_batch(story.name, [_body(stage, tenant, story, one) for one in due])
        sent += len(due)
        tally.counts["published"] += batch.published
        if story.delay_ms:
            tally.counts["delayed"] += batch.published


def _body(stage: Stage, tenant: str, story: QueueStory, one: PlannedMessage) -> dict[str, object]:
    headers = {"fate": one.fate.value} | ({"reason": one.reason} if one.reason else {})
    return {
        "payload": {"tenant": tenant, "number": one.number, "text": one.text},
        "headers": headers,
        "delayMs": one.delay_ms,
        "correlationId": f"demo-{one.number // 10}",
        "idempotencyKey": f"{stage.run}-{one.number}",
    }


async def consume(stage: Stage, client: AsyncPostroad, tenant: str, story: QueueStory, hand: int, tally: QueueTally) -> None:
    """One hand of the queue's consumer. When all is published it works on until the queue is empty; who does not keep up leaves
    what there is, as it is the point of that story."""
    consumer = story.consumer
    if consumer is None:
        return
    draw = draws(stage.seed, tenant, story.name, f"hand {hand}")
    leaves_early = consumer.keeps_up < 1
    while not (stage.is_over or (stage.is_quiet and leaves_early)):
        is_late = stage.is_quiet
        await stage.turn()
        pulled = await client.queues.pull(
            story.name,
            max_messages=consumer.batch,
            visibility_timeout_ms=_LEASE_MS,
            wait_ms=_LAST_WAIT_MS if is_late else _WAIT_MS,
        )
        tally.counts["delivered"] += len(pulled.messages)
        if not pulled.messages and is_late:
            return
        for _ in pulled.messages:
            await stage.rest(working_seconds(draw, story, stage.rate), is_broken_off=leaves_early)
        await _settle(stage, client, story, pulled.messages, tally)


async def _settle(stage: Stage, client: AsyncPostroad, story: QueueStory, leased: Sequence[Message], tally: QueueTally) -> None:
    alike: dict[Verdict, list[Message]] = defaultdict(list)
    for message in leased:
        alike[verdict(message.headers, message.attempt, story.max_attempts, stage.repaired)].append(message)
    for decided, some in alike.items():
        await stage.turn()
        if decided.action == "ack":
            settled = await client.queues.ack_many(story.name, some)
        else:
            action: Literal["dlq", "retry"] = "dlq" if decided.action == "dlq" else "retry"
            settled = await client.queues.nack_many(story.name, some, action=action, reason=decided.reason)
        _count(decided, some, settled, tally)


def _count(decided: Verdict, some: Sequence[Message], settled: Acked, tally: QueueTally) -> None:
    for message, result in zip(some, settled.results, strict=True):
        if not result.ok:
            tally.counts["lost"] += 1
        elif decided.action == "ack":
            tally.counts["done"] += 1
        elif decided.action == "dlq":
            tally.died(decided.reason, message.attempt)
        elif decided.is_last:
            tally.died(MAX_ATTEMPTS_REACHED, message.attempt)
        else:
            tally.counts["retried"] += 1


async def redrive(stage: Stage, client: AsyncPostroad, story: Redrive, tally: QueueTally) -> None:
    """Repair what refused messages, then put them back; see it through also when the demo is to end meanwhile."""
    if not await stage.until(story.at * stage.seconds):
        return
    stage.repaired.add(story.reason)
    await stage.turn()
    begun = await client.queues.dead_letters.redrive(story.queue, reason=story.reason, rate_per_second=50)
    if begun.task is not None:
        ended = await client.tasks.wait(begun.task, timeout=_REDRIVE_SECONDS)
        tally.counts["redriven"] += ended.progress.moved
