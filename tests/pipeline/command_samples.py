"""Events of commands, at a moment that is given in seconds after noon, and seeded traffic of them."""

import random
import uuid
from collections.abc import Sequence
from typing import Any

from postroad.commands.events import (
    AbuseDetected,
    BanCreated,
    CommandArchived,
    CommandDelivered,
    CommandFailed,
    CommandRefused,
    LimitSampled,
    SkewNearLimit,
    SkewSample,
    SourceFlagged,
)
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.telemetry_queue.events import TelemetryDropped, TelemetrySampled
from tests.pipeline.event_samples import NOON_MS

SOURCES = ("acme/shop", "acme/crm", "globex/billing")
TARGETS = ("globex/bot", "acme/mailer")
COMMANDS = ("send", "cancel")


def head(seconds: float, source: str, event_id: str | None = None, start: int = NOON_MS) -> dict[str, Any]:
    return {
        "event_id": event_id or str(uuid.uuid4()),
        "timestamp": rfc3339(start + round(seconds * 1000)),
        "tenant": source.partition("/")[0],
        "source": source,
    }


def delivered(
    seconds: float,
    source: str = "acme/shop",
    target: str = "globex/bot",
    command: str = "send",
    path: str = "fast",
    ms: float = 2.0,
) -> CommandDelivered:
    return CommandDelivered(
        command_id="c",
        target=target,
        command_name=command,
        message_id="m",
        path=path,
        dispatch_latency_ms=ms,
        **head(seconds, source),
    )


def failed(
    seconds: float, reason: str, source: str = "acme/shop", target: str = "globex/bot", command: str = "send"
) -> CommandFailed:
    return CommandFailed(command_id="c", target=target, command_name=command, reason=reason, **head(seconds, source))


def invalid(seconds: float, reason: str, source: str = "acme/shop", target: str | None = "globex/bot") -> CommandRefused:
    return CommandRefused(target=target, command_name="x" * 300, reason=reason, **head(seconds, source))


def skewed(seconds: float, skew: float, source: str = "acme/shop") -> SkewSample:
    return SkewSample(skew_seconds=skew, sent_at=rfc3339(NOON_MS), received_at=rfc3339(NOON_MS), **head(seconds, source))


def near_limit(seconds: float, skew: float, source: str = "acme/shop") -> SkewNearLimit:
    return SkewNearLimit(
        command_id="c", skew_seconds=skew, sent_at=rfc3339(NOON_MS), received_at=rfc3339(NOON_MS), **head(seconds, source)
    )


def abuse(seconds: float, source: str, targets: Sequence[str], until: float) -> AbuseDetected:
    ends = rfc3339(NOON_MS + round(until * 1000))
    return AbuseDetected(affected_targets=list(targets), total_violations=3, ban_applied_until=ends, **head(seconds, source))


def imposed(
    seconds: float, source: str, until: float, target: str | None = "globex/bot", command: str | None = "send"
) -> BanCreated:
    """A ban by the owner of the route; without a target, one on all routes."""
    ends = rfc3339(NOON_MS + round(until * 1000))
    common: dict[str, Any] = {"target": target, "command_name": command, "reason": "noise", "creator": "owner"}
    return BanCreated(kind="hard", expires_at=ends, **common, **head(seconds, source))


def flagged(seconds: float, source: str, targets: Sequence[str], result: str = "banned") -> SourceFlagged:
    return SourceFlagged(
        minute=rfc3339(NOON_MS), affected_targets=list(targets), share=0.9, violations=1, result=result, **head(seconds, source)
    )


def command_traffic(seed: int, count: int, minutes: int = 5, start: int = NOON_MS) -> list[Event]:
    """Outcomes of commands, each with its archived line, and samples of clocks. The same seed gives the same events."""
    chance = random.Random(seed)

    def new_id() -> str:
        return str(uuid.UUID(int=chance.getrandbits(128)))

    events: list[Event] = []
    for _ in range(count):
        source, target, command = chance.choice(SOURCES), chance.choice(TARGETS), chance.choice(COMMANDS)
        at = chance.randrange(minutes * 60_000) / 1000
        command_id, outcome = new_id(), chance.choices(("delivered", "failed", "invalid"), (8, 2, 1))[0]
        common = {**head(at, source, new_id(), start), "command_id": command_id, "target": target, "command_name": command}
        reason = None
        if outcome == "delivered":
            path = chance.choice(("fast", "fast", "slow"))
            latency = round(chance.expovariate(0.2), 3)
            events.append(CommandDelivered(message_id=new_id(), path=path, dispatch_latency_ms=latency, **common))
        elif outcome == "failed":
            reason = chance.choice(("acl-deny", "rate-limit-exceeded", "fairness-violation", "delivery-failure"))
            events.append(CommandFailed(reason=reason, **common))
        else:
            reason = chance.choice(("hmac-invalid", "timestamp-expired"))
            events.append(CommandRefused(reason=reason, **common))
        archived = {**common, "event_id": new_id()}
        events.append(
            CommandArchived(
                sent_at=archived["timestamp"],
                payload=f'{{"n":{chance.randrange(10**6)}}}',
                outcome=outcome,
                reason=reason,
                **archived,
            )
        )
        if chance.random() < 0.1:
            skew = round(chance.gauss(0.5, 3), 3)
            events.append(
                SkewSample(
                    skew_seconds=skew, sent_at=rfc3339(start), received_at=rfc3339(start), **head(at, source, new_id(), start)
                )
            )
    return events


def limited(
    seconds: float, target: str = "globex/bot", command: str = "send", most: int = 10, interval: int = 60
) -> LimitSampled:
    common = {name: value for name, value in head(seconds, target).items() if name != "source"}
    return LimitSampled(target=target, command_name=command, max=most, interval_seconds=interval, mode="enforce", **common)


def dropped(seconds: float, count: int, tenant: str = "acme") -> TelemetryDropped:
    common = {name: value for name, value in head(seconds, f"{tenant}/x").items() if name != "source"}
    return TelemetryDropped(dropped_events=count, queue_age_seconds=1.0, **common)


def telemetry_sampled(seconds: float, waiting: int, delivered: int, oldest: int | None, tenant: str = "acme") -> TelemetrySampled:
    common = {name: value for name, value in head(seconds, f"{tenant}/x").items() if name != "source"}
    return TelemetrySampled(
        waiting=waiting, leased=0, oldest_age_ms=oldest, delivered=delivered, acknowledged=delivered - 1, **common
    )
