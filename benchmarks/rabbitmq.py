"""Queues in RabbitMQ beside RabbitMQ itself: its management API, and a bare AMQP client with publisher confirms.

    .venv/bin/python -m benchmarks.rabbitmq [seconds] [rounds]

One RabbitMQ serves all three, each with a quorum queue of its own, so that their messages are equally durable. They take turns;
the table has the means. Publishing: 64 connections of wrk, or 64 tasks on one AMQP connection. Consuming: 16 connections that
pull 10 messages and acknowledge them, in RabbitMQ's management API by the same request.
"""

import asyncio
import os
import sys
import time

import aiormq
import uvloop
from pamqp.commands import Basic

from benchmarks.compare import Clock, fsync_ms, published, wait_until_responsive
from benchmarks.harness import Load, mean, postroad, table
from benchmarks.peers import rabbitmq
from benchmarks.peers.peer import PAYLOAD, Queue, Request, install, settled
from benchmarks.peers.postroad import queue_of
from benchmarks.pulling import pulled

PUBLISHERS, CONSUMERS, BATCH = 64, 16, 10
POSTROAD, MANAGEMENT, BARE = "Postroad over RabbitMQ", "RabbitMQ, management API", "bare aiormq, confirms"
PUBLISH, PULL = f"publish, {PUBLISHERS} connections", f"pull {BATCH} and acknowledge, {CONSUMERS} connections, messages"
TARGETS = ((PUBLISH, MANAGEMENT, 2.0), (PUBLISH, BARE, 0.5), (PULL, MANAGEMENT, 2.0))
_CHANNELS = 4


async def bare_publishes(url: str, seconds: float) -> Load:
    """Publish with confirms from as many tasks as the others have connections."""
    connection = await aiormq.connect(url)
    channels = [await connection.channel(publisher_confirms=True) for _ in range(_CHANNELS)]
    await channels[0].queue_declare("bare", durable=True, arguments={"x-queue-type": "quorum"})
    properties, body, until = Basic.Properties(delivery_mode=2), PAYLOAD.encode(), time.perf_counter() + seconds
    times: list[float] = []

    async def publish(channel: aiormq.abc.AbstractChannel) -> None:
        while (started := time.perf_counter()) < until:
            await channel.basic_publish(body, routing_key="bare", properties=properties, mandatory=True)
            times.append(time.perf_counter() - started)

    await asyncio.gather(*(publish(channels[number % _CHANNELS]) for number in range(PUBLISHERS)))
    await channels[0].queue_delete("bare")
    await connection.close()
    times.sort()
    return Load(len(times) / seconds, 1000 * times[len(times) // 2], 1000 * times[len(times) * 99 // 100], 0)


def consumed(queue: Queue, seconds: float) -> Load:
    batches = queue.of_batches(BATCH)
    assert batches is not None
    wait_until_responsive(queue)
    outcome = pulled(batches, CONSUMERS, seconds)
    if outcome.dry_after is not None:
        print(f"the queue ran empty after {outcome.dry_after:.1f} s: publish more")
    return outcome.load


def measure(seconds: float, rounds: int) -> dict[tuple[str, str], list[Load]]:
    found: dict[tuple[str, str], list[Load]] = {}
    with (
        rabbitmq.server() as (management_url, amqp_url),
        postroad(POSTROAD_RABBITMQ_URL=amqp_url, POSTROAD_QUEUE_BACKEND="rabbitmq") as server,
    ):
        ours, theirs = queue_of(server), rabbitmq.management_queue(management_url, "management", "quorum")
        settled(server.url, Request("PUT", "/v1/queues/bench", '{"backend":"rabbitmq"}', ours.publish.headers))
        for queue in (ours, theirs):
            published(queue, 8, 1)
        for number in range(rounds):
            sides = ((POSTROAD, ours), (MANAGEMENT, theirs))
            for name, queue in sides if number % 2 == 0 else sides[::-1]:
                found.setdefault((PUBLISH, name), []).append(published(queue, PUBLISHERS, seconds))
                found.setdefault((PULL, name), []).append(consumed(queue, seconds / 2))
            found.setdefault((PUBLISH, BARE), []).append(uvloop.run(bare_publishes(amqp_url, seconds)))
    return found


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    install("wrk")
    install(rabbitmq.PEER.setup)
    clock = Clock()
    means = {key: mean(loads) for key, loads in measure(seconds, rounds).items()}
    rows = [
        (load, name, f"{one.per_second:,.0f}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", one.failed)
        for (load, name), one in sorted(means.items())
    ]
    print(table(["load", "server", "per second", "p50 ms", "p99 ms", "failed"], rows))
    print()
    ratios = [(load, peer, need, means[load, POSTROAD].per_second / means[load, peer].per_second) for load, peer, need in TARGETS]
    verdicts = [
        (load, peer, f"{need:g}", f"{ratio:.2f}", "met" if ratio >= need else "missed") for load, peer, need, ratio in ratios
    ]
    print(table(["load", "compared with", "required ratio", "measured", "result"], verdicts))
    print(f"\nRabbitMQ {rabbitmq.PEER.version()}; {os.cpu_count()} cores shared by all; fsync of 4 KiB: {fsync_ms():.2f} ms;")
    print(f"other load during the run: {100 * clock.others:.0f} % of the processors")


if __name__ == "__main__":
    main()
