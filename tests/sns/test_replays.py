"""Archives and replays of FIFO topics through boto3."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.clients import refused
from tests.sns.conftest import SnsTenant
from tests.sns.test_fifo import RAW, fifo, fifo_queue, publish, received
from tests.waiting import eventually

ARCHIVE = json.dumps({"MessageRetentionPeriod": "30"})


def policy(start: datetime, end: datetime | None = None) -> str:
    points = {"PointType": "Timestamp", "StartingPoint": start.isoformat()}
    return json.dumps(points if end is None else {**points, "EndingPoint": end.isoformat()})


async def archived(tenant: SnsTenant, texts: str) -> tuple[str, str, str, list[datetime]]:
    """A topic with an archive, whose messages a queue got; topic, subscription, URL, and times before each message."""
    topic, (url, arn) = await fifo(tenant, ArchivePolicy=ARCHIVE), await fifo_queue(tenant)
    subscription = await tenant.subscribe(topic, arn, **RAW)
    for text in texts:
        await publish(tenant, topic, text)
    assert [one["Body"] for one in await received(tenant, url, len(texts))] == list(texts)
    client = tenant.aws.tenant.client

    async def is_settled() -> bool:  # what is not, is delivered again by a replay, whatever its time
        found = (await client.get("/v1/subscriptions")).ok()["subscriptions"]
        return all([(await client.get(f"/v1/subscriptions/{one['id']}")).ok()["status"]["lag"] == 0 for one in found])

    await eventually(is_settled)
    read = (await client.get("/v1/topics/t.fifo/messages")).ok()["messages"]
    return topic, subscription, url, [datetime.fromisoformat(one["timestamp"]) for one in read]


async def replay(tenant: SnsTenant, subscription: str, value: str) -> None:
    await tenant.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName="ReplayPolicy", AttributeValue=value)


async def is_completed(tenant: SnsTenant, subscription: str) -> bool:
    return (await tenant.attributes(subscription))["ReplayStatus"] == "Completed"


async def test_archive_policy(tenant: SnsTenant) -> None:
    topic = await fifo(tenant, ArchivePolicy=ARCHIVE)
    found = (await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]
    assert json.loads(found["ArchivePolicy"]) == {"MessageRetentionPeriod": "30"}
    begins = datetime.fromisoformat(found["BeginningArchiveTime"])
    assert timedelta(0) <= datetime.now(UTC) - begins < timedelta(hours=1)
    native = (await tenant.aws.tenant.client.get("/v1/topics/t.fifo")).ok()
    assert native["settings"]["retentionMs"] == 30 * 86_400_000
    with refused("InvalidState", 400, "ArchivePolicy"):
        await tenant.sns.delete_topic(TopicArn=topic)
    for wrong in ("x", "[]", '{"MessageRetentionPeriod": "0"}', '{"MessageRetentionPeriod": 366}', '{"Other": "1"}'):
        with refused("InvalidParameter", 400, "ArchivePolicy"):
            await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName="ArchivePolicy", AttributeValue=wrong)
    for days in ("1", "365"):
        value = json.dumps({"MessageRetentionPeriod": days})
        await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName="ArchivePolicy", AttributeValue=value)
    await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName="ArchivePolicy", AttributeValue="{}")
    found = (await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]
    assert not {"ArchivePolicy", "BeginningArchiveTime"} & set(found)
    await tenant.sns.delete_topic(TopicArn=topic)


async def test_a_replay_delivers_the_archive_in_order_and_goes_on(tenant: SnsTenant) -> None:
    topic, subscription, url, times = await archived(tenant, "abcde")
    await replay(tenant, subscription, policy(times[2]))
    again = await received(tenant, url, 3)
    assert [one["Body"] for one in again] == ["c", "d", "e"]
    assert all(one["MessageAttributes"]["Replayed"]["StringValue"] == "true" for one in again)
    await eventually(lambda: is_completed(tenant, subscription))
    await publish(tenant, topic, "f")
    [new] = await received(tenant, url, 1)
    assert new["Body"] == "f" and "MessageAttributes" not in new


async def test_a_replay_with_an_end_stops_there(tenant: SnsTenant) -> None:
    topic, subscription, url, times = await archived(tenant, "abcde")
    await replay(tenant, subscription, policy(times[1], times[3]))
    assert [one["Body"] for one in await received(tenant, url, 2)] == ["b", "c"]
    await eventually(lambda: is_completed(tenant, subscription))
    await publish(tenant, topic, "f")
    await replay(tenant, subscription, "")
    [new] = await received(tenant, url, 1)  # d and e were delivered before the replay
    assert new["Body"] == "f"
    assert not {"ReplayPolicy", "ReplayStatus"} & set(await tenant.attributes(subscription))


async def test_a_replayed_envelope_has_its_id_and_time(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant, ArchivePolicy=ARCHIVE), await fifo_queue(tenant)
    subscription = await tenant.subscribe(topic, arn)
    await publish(tenant, topic, "x")
    [first] = [json.loads(one["Body"]) for one in await received(tenant, url, 1)]
    await replay(tenant, subscription, policy(datetime.fromisoformat(first["Timestamp"])))
    [again] = [json.loads(one["Body"]) for one in await received(tenant, url, 1)]
    assert again["MessageAttributes"] == {"Replayed": {"Type": "String", "Value": "true"}}
    same = ("MessageId", "Timestamp", "SequenceNumber", "Message", "Signature")
    assert [again[name] for name in same] == [first[name] for name in same]


async def test_a_new_subscription_with_a_replay_policy(tenant: SnsTenant) -> None:
    topic, _, _, times = await archived(tenant, "abc")
    url, arn = await fifo_queue(tenant, "other")
    subscription = await tenant.subscribe(topic, arn, **RAW, ReplayPolicy=policy(times[1]))
    assert [one["Body"] for one in await received(tenant, url, 2)] == ["b", "c"]
    assert json.loads((await tenant.attributes(subscription))["ReplayPolicy"])["PointType"] == "Timestamp"


async def test_a_filter_policy_selects_what_is_replayed(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant, ArchivePolicy=ARCHIVE), await fifo_queue(tenant)
    for number in range(4):
        kind = {"kind": {"DataType": "Number", "StringValue": str(number % 2)}}
        await publish(tenant, topic, str(number), MessageAttributes=kind)
    begins = (await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]["BeginningArchiveTime"]
    chosen = {"FilterPolicy": '{"kind": [1]}', "ReplayPolicy": policy(datetime.fromisoformat(begins))}
    await tenant.subscribe(topic, arn, **RAW, **chosen)
    assert [one["Body"] for one in await received(tenant, url, 2)] == ["1", "3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PointType": "Sequence"}, "PointType"),
        ({"StartingPoint": "yesterday"}, "StartingPoint"),
        ({"StartingPoint": "2024-01-01T00:00:00"}, "StartingPoint"),
        ({"StartingPoint": "2020-01-01T00:00:00Z"}, "BeginningArchiveTime"),
        ({"StartingPoint": "2199-01-01T00:00:00Z"}, "future"),
        ({"EndingPoint": "2020-01-01T00:00:00Z"}, "EndingPoint"),
        ({"Unknown": "x"}, "Unknown"),
    ],
)
async def test_an_invalid_replay_policy(tenant: SnsTenant, changes: dict[str, Any], message: str) -> None:
    topic, (_, arn) = await fifo(tenant, ArchivePolicy=ARCHIVE), await fifo_queue(tenant)
    subscription = await tenant.subscribe(topic, arn)
    valid = json.loads(policy(datetime.now(UTC)))
    with refused("InvalidParameter", 400, message):
        await replay(tenant, subscription, json.dumps({**valid, **changes}))
    with refused("InvalidParameter", 400, "ReplayPolicy"):
        await replay(tenant, subscription, "x")


async def test_a_replay_needs_an_archive(tenant: SnsTenant) -> None:
    topic, (_, arn) = await fifo(tenant), await fifo_queue(tenant)
    with refused("InvalidParameter", 400, "ArchivePolicy"):
        await tenant.subscribe(topic, arn, ReplayPolicy=policy(datetime.now(UTC)))
    plain, (_, queue) = await tenant.topic("plain"), await tenant.queue("plain")
    with refused("InvalidParameter", 400, "ArchivePolicy"):
        await tenant.subscribe(plain, queue, ReplayPolicy=policy(datetime.now(UTC)))


async def test_too_many_replays_of_a_topic(tenant: SnsTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.aws.sns_subscriptions.REPLAYS_MAX", 1)
    topic, first, _, times = await archived(tenant, "ab")
    client = tenant.aws.tenant.client
    [native] = (await client.get("/v1/subscriptions")).ok()["subscriptions"]
    (await client.post(f"/v1/subscriptions/{native['id']}/pause", {})).ok()  # so that its replay does not end
    await replay(tenant, first, policy(times[0]))
    _, arn = await fifo_queue(tenant, "other")
    second = await tenant.subscribe(topic, arn, **RAW)
    with refused("ReplayLimitExceeded", 403):
        await replay(tenant, second, policy(times[0]))
