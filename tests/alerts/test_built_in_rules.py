"""Each built-in rule opens an alert for the events that it is about, as they are stored."""

from typing import Any

import msgspec
import pytest

from postroad import registry
from postroad.alerts.capability import AlertsCapability
from postroad.alerts.rules import BUILT_IN, PLATFORM_RULES
from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.event import PLATFORM, Event, event_name
from postroad.kernel.ids import new_id
from postroad.kernel.matching import pattern_matches
from tests.alerts.test_crashes import gateway, new_processor
from tests.gateway import Gateway, events_of

pytestmark = pytest.mark.engine
__all__ = ["gateway"]
KINDS = {event_name(kind): kind for kind in registry.event_types()}


def sample(kind: type[Event], tenant: str) -> Event:
    """An event with some value in each field that has no default."""
    values: dict[str, Any] = {"tenant": tenant, "event_id": new_id()}
    for field in msgspec.structs.fields(kind):
        if field.required:
            text = str(field.type)
            values[field.name] = [] if "list" in text or "tuple" in text else 1 if "int" in text or "float" in text else "x"
    if "events_dropped" in values:
        values["events_dropped"] = 1
    return msgspec.convert(msgspec.to_builtins(kind(**values)), kind)


async def test_each_rule_opens_an_alert_for_each_of_its_events(gateway: Gateway) -> None:
    """Requirements 39, 179, 197"""
    tenant, outbox = (await gateway.tenant()).id, gateway.node.platform.outbox
    expected = set[tuple[str, str, str]]()
    for owner, rules in ((tenant, BUILT_IN), (PLATFORM, PLATFORM_RULES)):
        for rule in rules.values():
            for name in [name for name in KINDS if pattern_matches(rule.definition.events, name)]:
                outbox.record(None, sample(KINDS[name], owner))
                expected.add((owner, rule.name, name))
    await outbox.drain()
    processor = new_processor(gateway)
    await processor._load()
    for stream, word in (("COMMANDS", "command"), ("TELEMETRY", "telemetry")):
        for owner in (tenant, PLATFORM):
            for entry in (await stream_reader.read(gateway.node.platform.connection, stream, f"{word}.{owner}")).entries:
                processor.apply(stream, entry)
    found = {(one.tenant, one.rule, one.event) for one in processor.book.alerts.values() if not one.is_pending}
    assert found == expected
    assert {rule for _, rule, _ in found} == {*BUILT_IN, *PLATFORM_RULES}


async def test_a_pipeline_that_publishes_no_batch_lags(gateway: Gateway) -> None:
    platform = gateway.node.platform
    monitor = platform.use(AlertsCapability).pipeline
    assert not await monitor.run_once(), "there is no pipeline"
    progress = PipelineProgress(v=VERSION, batch=1, computed_at=rfc3339(now_ms()), rows=[], period=60.0)
    message = PendingMessage(PIPELINE_PROGRESS.subject, msgspec.json.encode(progress), new_id())
    await platform.committers.of(PIPELINE_PROGRESS.stream).append(message)
    gateway.clock.ahead_ms = 540_000
    assert not await monitor.run_once(), "ten periods are allowed"
    gateway.clock.ahead_ms = 660_000
    assert await monitor.run_once()
    assert await monitor.run_once(), "reported once in five minutes"
    await platform.outbox.drain()
    [event] = [one for one in await events_of(platform.connection, "TELEMETRY", PLATFORM) if one["event"] == "pipeline.lagging"]
    assert event["seconds"] > event["expected_seconds"] == 600
