"""Gauges of queues in /metrics, and the alert rules that use them."""

import re

from prometheus_client.parser import text_string_to_metric_families

from postroad.container import Role
from postroad.monitoring.alerts import ALERTS
from postroad.queues.events import QueueSampled
from postroad.queues.gauges import GAUGES, LEFT_OUT, QueueGauges, SamplePublisher
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

Series = dict[tuple[str, str], dict[str, float]]


async def scrape(gateway: Gateway) -> Series:
    """The values by tenant and queue."""
    text = (await gateway.anonymous.get("/metrics")).body.decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in GAUGES:
                found.setdefault((sample.labels["tenant"], sample.labels["queue"]), {})[sample.name] = sample.value
            elif sample.name == LEFT_OUT:
                found.setdefault(("", ""), {})[LEFT_OUT] = sample.value
    return found


async def test_every_process_reports_the_queues(own_server: Server) -> None:
    async with (
        running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as node,
        running_gateway(gateway_settings(own_server.url)) as gateway,
    ):
        tenant = await node.tenant()
        queue = await tenant.queue("orders", expectedDrainSeconds=60)
        for number in range(4):
            await tenant.publish(queue, number)
        await tenant.publish(queue, "later", delayMs=60_000)
        leased = await tenant.pull(queue, 3, visibilityTimeoutMs=60_000)
        for message, action in ((leased[0], "retry"), (leased[1], "dlq")):
            body = {"receiptId": message["receiptId"], "action": action}
            (await tenant.client.post(f"{queue}/nack", body | ({"delayMs": 60_000} if action == "retry" else {}))).ok()
        expected = {"ready": 1, "overdue": 0, "leased": 1, "retrying": 1, "delayed": 1, "dead": 1, "expected_drain_seconds": 60}

        async def is_reported_by(one: Gateway) -> bool:
            values = (await scrape(one)).get((tenant.id, "orders"), {})
            return set(values) == set(GAUGES) and all(values[f"postroad_queue_{name}"] == n for name, n in expected.items())

        for one in (node, gateway):
            await eventually(lambda one=one: is_reported_by(one))  # type: ignore[misc]
            assert (await scrape(one))[tenant.id, "orders"]["postroad_queue_oldest_age_seconds"] > 0
        (await tenant.client.delete(queue)).ok(204)

        async def is_gone() -> bool:
            return (tenant.id, "orders") not in await scrape(gateway)

        await eventually(is_gone)


async def test_every_metric_of_the_alert_rules_exists(gateway: Gateway) -> None:
    used = {name for one in ALERTS if one.group == "queues" for name in re.findall(r"postroad_[a-z_]+", one.expression)}
    assert len(used) > 8
    publisher = SamplePublisher(gateway.node.platform.connection, queues_max=1, seconds=1)

    async def are_reported() -> bool:
        await publisher.publish([sample("a")], [("t", "a")])
        found = await scrape(gateway)
        return used <= {name for values in found.values() for name in values}

    await eventually(are_reported)


def sample(queue: str, ready: int = 0, oldest_age_ms: int | None = None) -> QueueSampled:
    return QueueSampled(
        tenant="t",
        queue=queue,
        ready=ready,
        leased=0,
        delayed=0,
        dead=0,
        waiting=0,
        oldest_age_ms=oldest_age_ms,
        expected_drain_seconds=300,
        in_per_second=1.5,
        out_per_second=0,
        seconds=10,
    )


async def test_the_number_of_series_is_limited(gateway: Gateway) -> None:
    publisher = SamplePublisher(gateway.node.platform.connection, queues_max=2, seconds=1)
    names = [("t", name) for name in "abcd"]

    async def reported(expected: set[tuple[str, str]]) -> Series:
        found: Series = {}

        async def is_received() -> bool:
            nonlocal found
            await publisher.publish([], names)
            found = await scrape(gateway)
            return set(found) == expected | {("", "")}

        await eventually(is_received)
        return found

    await publisher.publish([sample("a", 1), sample("b", 5, 9000), sample("c", 3), sample("d", 4, 7000)], names)
    found = await reported({("t", "b"), ("t", "d"), ("other", "other")})
    assert found["other", "other"]["postroad_queue_ready"] == 4
    assert found["other", "other"]["postroad_queue_in_per_second"] == 3
    assert found["", ""][LEFT_OUT] == 2
    await publisher.publish([sample("a", 100)], names)
    await reported({("t", "b"), ("t", "d"), ("other", "other")})  # a queue keeps its series
    names.remove(("t", "d"))
    found = await reported({("t", "a"), ("t", "b"), ("other", "other")})
    assert found["t", "a"]["postroad_queue_ready"] == 100


class Recorder:
    """A connection of which only `publish` is used."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, _subject: str, payload: bytes) -> None:
        self.payloads.append(payload)


async def test_stale_samples_are_not_reported(gateway: Gateway) -> None:
    gauges, recorder = QueueGauges(gateway.node.platform.connection), Recorder()
    assert list(gauges.collect()) == []
    gauges._receive(b"nonsense")
    await SamplePublisher(recorder, queues_max=2, seconds=0).publish([sample("a")], [("t", "a")])  # type: ignore[arg-type]
    gauges._receive(recorder.payloads[0])
    assert len(list(gauges.collect())) == len(GAUGES) + 1
    gauges._expires_at = 0.0
    assert list(gauges.collect()) == []


async def test_no_queues_are_reported_if_the_limit_is_zero() -> None:
    recorder = Recorder()
    await SamplePublisher(recorder, queues_max=0, seconds=1).publish([sample("a")], [("t", "a")])  # type: ignore[arg-type]
    assert recorder.payloads == []
