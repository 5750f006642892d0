"""Subscriptions with both clients, against a running gateway."""

import pytest

from postroad.client.errors import SubscriptionNotFound
from tests.client.conftest import Sdk

URL = "https://hooks.invalid/orders"


async def test_the_lifecycle_of_a_subscription(sdk: Sdk, name: str) -> None:
    await sdk("topics.put", name)
    made = await sdk("subscriptions.create", name, "http_push", url=URL, filter="eu.>", name="crm", max_deliver=3)
    assert (made.topic, made.name, made.filter, made.max_deliver) == (name, "crm", ("eu.>",), 3)
    assert made.secret.startswith("whsec_")
    assert [one.id for one in await sdk("subscriptions.list", topic=name)] == [made.id]
    changed = await sdk("subscriptions.update", made.id, max_in_flight=2, content_filter={"payload": {"a": 1}})
    assert (changed.max_in_flight, changed.content_filter) == (2, {"payload": {"a": 1}})
    assert (await sdk("subscriptions.pause", made.id)).state == "paused"
    assert (await sdk("subscriptions.resume", made.id)).state == "active"
    shown = await sdk("subscriptions.get", made.id)
    assert (shown.status.lag, shown.status.dead) == (0, 0)
    assert (await sdk("subscriptions.rewind", made.id, from_sequence=1)).rewind.from_sequence == 1
    assert (await sdk("subscriptions.end_rewind", made.id)).rewind is None
    rotated = await sdk("subscriptions.rotate_secret", made.id, grace_seconds=60)
    assert rotated.secret != made.secret
    tested = await sdk("subscriptions.test", made.id, subject="eu.test")
    assert (tested.outcome, tested.error) == ("transient", "dns")
    assert (await sdk("subscriptions.attempts", made.id)).attempts == []
    await sdk("subscriptions.delete", made.id)
    with pytest.raises(SubscriptionNotFound):
        await sdk("subscriptions.get", made.id)


async def test_filters_replays_and_dead_letters(sdk: Sdk, name: str) -> None:
    await sdk("topics.put", name)
    await sdk("topics.publish", name, "eu.created", payload={"a": 1})
    made = await sdk("subscriptions.create", name, "http_push", url=URL)
    result = await sdk("subscriptions.test_filter", "eu.created", filter=["eu.*"], payload={"a": 1})
    assert result.matches
    assert (await sdk("subscriptions.replay", made.id, from_sequence=1, dry_run=True)).count == 1
    assert await sdk("subscriptions.dead_letters", made.id) == []
    assert (await sdk("subscriptions.dead_letter_groups", made.id)).groups == []
    assert (await sdk("subscriptions.redrive_dead_letters", made.id, dry_run=True)).count == 0
    assert (await sdk("subscriptions.purge_dead_letters", made.id)).count == 0


async def test_a_missing_subscription_is_not_followed(sdk: Sdk) -> None:
    with pytest.raises(SubscriptionNotFound):
        await sdk("subscriptions.follow", "01890000-0000-7000-8000-000000000000")
