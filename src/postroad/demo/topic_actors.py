"""The demo's topic with its subscriptions, and its bucket: events of orders, an endpoint that is down, stock that changes."""

import contextlib
from collections import Counter

from postroad.client import AsyncPostroad
from postroad.client.errors import AlreadyExists
from postroad.demo.clock import DemoClock
from postroad.demo.plan import arrivals, seeded_random
from postroad.demo.scenarios import RATE, EventsScenario


async def create_events(admin: AsyncPostroad, scenario: EventsScenario) -> None:
    """The topic, its subscriptions and the bucket, as far as they are missing."""
    await admin.topics.put(scenario.topic)
    existing = {one.name async for one in admin.subscriptions.list(topic=scenario.topic)}
    for one in scenario.subscriptions:
        if one.name in existing:
            continue
        created = await admin.subscriptions.create(
            scenario.topic, "http_push", name=one.name, url=one.url, filter=one.filter, max_deliver=3
        )
        if one.is_paused:
            await admin.subscriptions.pause(created.id)
    with contextlib.suppress(AlreadyExists):
        await admin.buckets.create(scenario.bucket, history=10)


async def publish_events(clock: DemoClock, client: AsyncPostroad, scenario: EventsScenario, counts: Counter[str]) -> None:
    """Publish what happens to orders."""
    random = seeded_random(clock.seed, scenario.topic, "events")
    for number, at in enumerate(arrivals(random, scenario.events_per_second * clock.rate / RATE, clock.seconds)):
        if not await clock.wait_until(at):
            return
        step = random.choice(("created", "paid", "shipped"))
        await clock.throttle()
        await client.topics.publish(scenario.topic, f"orders.{10000 + number}.{step}", {"order": 10000 + number, "step": step})
        counts["events"] += 1


async def change_stock(clock: DemoClock, client: AsyncPostroad, scenario: EventsScenario, counts: Counter[str]) -> None:
    """Change the values of the bucket."""
    random = seeded_random(clock.seed, scenario.bucket, "stock")
    left = dict.fromkeys(scenario.articles, 100)
    for at in arrivals(random, scenario.changes_per_second * clock.rate / RATE, clock.seconds):
        if not await clock.wait_until(at):
            return
        article = random.choice(scenario.articles)
        left[article] = left[article] - random.randint(1, 5) if left[article] > 5 else 100
        await clock.throttle()
        await client.buckets.put_value(scenario.bucket, article, {"left": left[article], "run": clock.run})
        counts["valuesWritten"] += 1
