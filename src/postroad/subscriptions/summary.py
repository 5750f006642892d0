"""One sentence on the delivery of a subscription. Pure."""

from collections.abc import Sequence

from postroad.api.subscriptions import DeliveryType, SubscriptionState
from postroad.kernel.clock import rfc3339
from postroad.subscriptions.records import ProgressRecord, SubscriptionRecord

_STALE_MS = 15_000


def summary(
    record: SubscriptionRecord, progress: ProgressRecord | None, lag: int, dead: int, members: Sequence[str], now_ms: int
) -> str:
    """One sentence: what is delivered, or why nothing is."""
    if record.state is SubscriptionState.DISABLED:
        return f"Disabled: {record.disabled_reason}. Resume it once the endpoint accepts messages again."
    if record.state is SubscriptionState.PENDING:
        return "The endpoint has not confirmed the subscription yet; nothing is delivered before."
    if record.state is SubscriptionState.PAUSED:
        return f"Paused; {_waiting(lag)} until it is resumed."
    if not members:
        return f"No delivery process runs; {_waiting(lag)}."
    if progress is None or (not progress.owner and lag):
        return f"A delivery process is about to take it over; {_waiting(lag)}."
    if progress.resumes_at_ms is not None and progress.resumes_at_ms > now_ms:
        why = "The circuit breaker is open" if progress.breaker != "closed" else "The endpoint asked for a pause"
        return f"{why} after {progress.last_error or 'failures'}; the next attempt is at {rfc3339(progress.resumes_at_ms)}."
    if lag and progress.owner and progress.owner not in members and now_ms - progress.at_ms > _STALE_MS:
        return f"Its delivery process stopped; another one is taking it over; {_waiting(lag)}."
    if progress.last_error is not None and lag:
        return f"Retrying after {progress.last_error}; {_undelivered(lag)}."
    if progress.suspected_loop is not None:
        return (
            f"A loop is suspected: the key {progress.suspected_loop!r} is changed again during each delivery of its change. "
            "The receiver should write to another bucket, or send X-MQ-Hops back."
        )
    if lag:
        return f"Delivering; {_undelivered(lag)}."
    if not dead:
        return "Everything is delivered."
    cause = "" if progress.last_error is None else f", the last one after {progress.last_error}"
    letters = "1 message is a dead letter" if dead == 1 else f"{dead} messages are dead letters"
    return f"Everything else is delivered; {letters}{cause}."


def live_summary(record: SubscriptionRecord) -> str:
    if record.state is SubscriptionState.PAUSED:
        return "Paused; it cannot be read until it is resumed."
    path = f"/v1/ws/{record.id}" if record.delivery_type is DeliveryType.WEBSOCKET else f"/v1/subscriptions/{record.id}/stream"
    return f"Read live by clients, at {path}; no progress is stored."


def _waiting(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"


def _undelivered(count: int) -> str:
    return "1 message is not delivered yet" if count == 1 else f"{count} messages are not delivered yet"
