"""The outbox: buffers events per tenant. Events that arrive while a frame is being stored form the next frame.

`commit` returns once the events are durable, for responses that promise it. `record` never waits and never fails: its events
are lost only if the process dies before they are stored, the engine is unavailable for longer than the buffer lasts, or half of
the store's reserve is used; the metric `postroad_events_dropped_total` counts them. In the last case `commit` drops the events of
tenants, too, so that acknowledgements and deletions, which release storage, do not fail.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import force_setattr

from postroad.api.governance import AuditMode
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import PLATFORM, Event
from postroad.kernel.ids import new_id
from postroad.telemetry import metrics
from postroad.telemetry.frames import encode_event, frame_headers, frame_subject, pack

_FRAME_EVENTS_MAX = 2000
_FRAME_BYTES_MAX = 512 * 1024

log = structlog.get_logger("postroad.telemetry")


class _Waiter:
    """A caller that waits until the buffer's lines from `first` to before `last` are stored."""

    __slots__ = ("first", "future", "last")

    def __init__(self, first: int, last: int, future: "asyncio.Future[None]") -> None:
        self.first, self.last, self.future = first, last, future


class _TenantBuffer:
    """Buffered events of one tenant for one stream."""

    __slots__ = ("lines", "sending", "subject", "waiters")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.lines: list[bytes] = []
        self.waiters: list[_Waiter] = []
        self.sending: asyncio.Task[None] | None = None


class Outbox:
    def __init__(
        self,
        committers: Committers,
        clock: Clock,
        audit_mode: Callable[[str], AuditMode] = lambda _tenant: AuditMode.FULL,
        *,
        waiting_bytes_max: int = 32 * 1024 * 1024,
    ) -> None:
        self._committers, self._clock, self._audit_mode = committers, clock, audit_mode
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._buffers: dict[tuple[str, str], _TenantBuffer] = {}
        self.dropped = 0  # events dropped since the start

    def record(self, context: RequestContext | None, *events: Event) -> None:
        """Store events of one tenant and one stream soon. Does not wait and does not raise.

        Empty ids, times, tenant, key and request are filled in from the context. Job events follow the tenant's audit mode.
        """
        complete = self._complete(context, events)
        if not complete or self._is_dropped(complete):
            return
        if self._waiting_bytes > self._waiting_bytes_max:
            self._drop(complete[0].stream, len(complete))
            return
        self._add(complete[0], [encode_event(event) for event in complete], None)

    async def commit(self, context: RequestContext | None, *events: Event) -> None:
        """Like `record`, but return once the events are durable.

        Raises EngineUnavailable, also when the buffer is full. The operation that the events report has happened all the same.
        """
        complete = self._complete(context, events)
        if not complete or self._is_dropped(complete):
            return
        lines = [encode_event(event) for event in complete]
        if self._waiting_bytes > self._waiting_bytes_max:
            raise EngineUnavailable("too many events are waiting to be stored", retry_after=1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(complete[0], lines, future)
        await future

    def _complete(self, context: RequestContext | None, events: Sequence[Event]) -> list[Event]:
        """Fill in the events in place, as callers do not share them; omit those that the audit mode suppresses."""
        complete = []
        for event in events:
            if not event.tenant and context is not None:
                force_setattr(event, "tenant", context.tenant)
            if event.is_audited:
                mode = self._audit_mode(event.tenant)
                if mode is AuditMode.OFF:
                    continue
                if hasattr(event, "audit"):
                    force_setattr(event, "audit", mode.value)
            if not event.event_id:
                force_setattr(event, "event_id", new_id())
            if not event.timestamp:
                force_setattr(event, "timestamp", rfc3339(self._clock()))
            if context is not None:
                _fill_caller(event, context)
            complete.append(event)
        return complete

    def _is_dropped(self, events: Sequence[Event]) -> bool:
        """Drop the events of a tenant if the rest of the store is for the operator."""
        if not self._committers.storage.store.is_critical or events[0].tenant == PLATFORM:
            return False
        self._drop(events[0].stream, len(events))
        return True

    def _drop(self, stream: str, count: int) -> None:
        self.dropped += count
        metrics.events_dropped.labels(stream).inc(count)

    def _add(self, first: Event, lines: list[bytes], future: "asyncio.Future[None] | None") -> None:
        key = (first.stream, first.tenant)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _TenantBuffer(frame_subject(*key))
        if future is not None:
            buffer.waiters.append(_Waiter(len(buffer.lines), len(buffer.lines) + len(lines), future))
        buffer.lines.extend(lines)
        self._waiting_bytes += sum(map(len, lines))
        if buffer.sending is None:
            buffer.sending = asyncio.create_task(self._send(key, buffer))

    async def _send(self, key: tuple[str, str], buffer: _TenantBuffer) -> None:
        """Send frames until the buffer is empty, then remove it."""
        try:
            while buffer.lines:
                lines, waiters = self._take_frame(buffer)
                try:
                    message = PendingMessage(buffer.subject, pack(lines), new_id(), frame_headers(len(lines)))
                    await self._committers.of(key[0]).append(message)
                    metrics.events_framed.labels(key[0]).inc(len(lines))
                    metrics.frame_events.observe(len(lines))
                    _resolve([waiter for waiter in waiters if waiter.last <= 0], None)
                except Exception as problem:  # bugs, too: waiting callers must not hang
                    self._drop(key[0], len(lines))
                    log.error("events_not_stored", stream=key[0], count=len(lines), error=repr(problem))
                    _resolve(waiters, problem)
                finally:
                    self._waiting_bytes -= sum(map(len, lines))
        finally:
            buffer.sending = None
            if not buffer.lines and self._buffers.get(key) is buffer:
                del self._buffers[key]

    def _take_frame(self, buffer: _TenantBuffer) -> tuple[list[bytes], list[_Waiter]]:
        """The lines of the next frame, and the waiters of these lines. A waiter with `last` at 0 or less has no more lines."""
        count = size = 0
        for line in buffer.lines:
            if count and (count >= _FRAME_EVENTS_MAX or size + len(line) > _FRAME_BYTES_MAX):
                break
            count += 1
            size += len(line) + 1
        lines, buffer.lines = buffer.lines[:count], buffer.lines[count:]
        waiters = [waiter for waiter in buffer.waiters if waiter.first < count]
        for waiter in buffer.waiters:
            waiter.first -= count
            waiter.last -= count
        buffer.waiters = [waiter for waiter in buffer.waiters if waiter.last > 0]
        return lines, waiters

    async def drain(self) -> None:
        """Wait until all events are stored or dropped. Events whose sending was cancelled are not sent again."""
        while tasks := [one.sending for one in self._buffers.values() if one.sending and not one.sending.done()]:
            await asyncio.gather(*tasks, return_exceptions=True)


def _fill_caller(event: Event, context: RequestContext) -> None:
    if getattr(event, "key_id", None) == "":
        force_setattr(event, "key_id", context.caller.key_id)
    if getattr(event, "request_id", None) == "":
        force_setattr(event, "request_id", context.request_id)


def _resolve(waiters: Sequence[_Waiter], problem: Exception | None) -> None:
    for waiter in waiters:
        if waiter.future.done():
            continue
        if problem is None:
            waiter.future.set_result(None)
        else:
            waiter.future.set_exception(EngineUnavailable("the events could not be stored", retry_after=1))
