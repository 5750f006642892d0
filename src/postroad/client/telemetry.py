"""`client.telemetry`: the tenant's events, live or from its telemetry queue."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from postroad.client.calls import AsyncNamespace, SyncNamespace, live
from postroad.client.generated.telemetry import TelemetryCalls as GeneratedTelemetryCalls
from postroad.client.queues import AsyncQueues, Queues
from postroad.client.telemetry_follower import TelemetryFollower

QUEUE = "_telemetry"
_WAIT_MS = 20_000


class TelemetryCalls(GeneratedTelemetryCalls):
    @live
    def follow(
        self,
        *,
        events: str = ">",
        source: str | None = None,
        target: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        max_per_second: int | None = None,
        cloudevents: bool = False,
        last_event_id: str | None = None,
    ) -> TelemetryFollower:
        """The tenant's events as they happen, from now on: those whose type matches the pattern, such as `snavio.command.*`.

        `source` and `target` choose the sender and the target of commands: `<service>` or `<tenant>/<service>`; `queue` and
        `key` events of a queue, or caused by a key. Above `max_per_second` events are left out, and `telemetry.thinned` counts
        them. Connects again after an interruption and continues after the last event; some events may come twice, with the same
        `event_id`. With `cloudevents` each is a CloudEvents 1.0 event, whose `data` is the event.
        """
        query: dict[str, object] = {"events": events, "source": source, "target": target}
        query |= {"queue": queue, "key": key, "maxPerSecond": max_per_second}
        query |= {"format": "cloudevents" if cloudevents else None}
        return TelemetryFollower(query, last_event_id)


class Telemetry(TelemetryCalls, SyncNamespace):
    def consume(
        self, *, max_messages: int = 10, visibility_timeout_ms: int | None = None, stop_when_empty: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The events of the tenant's telemetry queue, oldest first. Each stays in the queue until the one after it is
        requested, together with the others of its message: leave the loop by an exception, and they are delivered again.

        Raises QueueNotFound before the first service exists.
        """
        queues = Queues(self._transport)
        while True:
            pulled = queues.pull(
                QUEUE,
                max_messages=max_messages,
                visibility_timeout_ms=visibility_timeout_ms,
                wait_ms=0 if stop_when_empty else _WAIT_MS,
            )
            for message in pulled.messages:
                yield from message.payload
                queues.ack(QUEUE, message)
            if stop_when_empty and not pulled.messages:
                return


class AsyncTelemetry(TelemetryCalls, AsyncNamespace):
    async def consume(
        self, *, max_messages: int = 10, visibility_timeout_ms: int | None = None, stop_when_empty: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """As `Telemetry.consume`."""
        queues = AsyncQueues(self._transport)
        while True:
            pulled = await queues.pull(
                QUEUE,
                max_messages=max_messages,
                visibility_timeout_ms=visibility_timeout_ms,
                wait_ms=0 if stop_when_empty else _WAIT_MS,
            )
            for message in pulled.messages:
                for event in message.payload:
                    yield event
                await queues.ack(QUEUE, message)
            if stop_when_empty and not pulled.messages:
                return
