"""The outbox: buffers events per tenant. Events that arrive while a frame is being stored form the next frame.

Recorded events wait up to 20 ms for others, as a frame costs the same with one event or with many; a commit sends them at once.
Frames, and the messages that their events report, share a sync of the embedded server's files.
`commit` returns once the events are durable, for responses that promise it. `record` never waits and never fails: its events
are lost only if the process dies before they are stored, the engine is unavailable for longer than the buffer lasts, or half of
the store's reserve is used; the metric `postroad_events_dropped_total` counts them. In the last case `commit` drops the events of
tenants, too, so that acknowledgements and deletions, which release storage, do not fail.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial

import structlog
from msgspec.structs import force_setattr

from postroad.api.governance import AuditMode
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import PLATFORM, Event
from postroad.kernel.futures import resolve
from postroad.kernel.ids import new_id
from postroad.telemetry import metrics
from postroad.telemetry.frames import encode_event, frame_headers, frame_subject, pack

_FRAME_EVENTS_MAX = 2000
_FRAME_BYTES_MAX = 512 * 1024
_COMPANY_SECONDS = 0.02
_HELD_SECONDS = 0.1  # until the next attempt during maintenance

OnCommitted = Callable[[EngineUnavailable | None], None]
Written = tuple[str, int]  # a stream, and the sequence of a message that is not synced yet; 0 for an acknowledgement

log = structlog.get_logger("postroad.telemetry")


class _Waiter:
    """A caller that waits until the buffer's lines from `first` to before `last` are durable, and what it has written."""

    __slots__ = ("first", "last", "on_committed", "written")

    def __init__(self, first: int, last: int, on_committed: OnCommitted, written: Written | None) -> None:
        self.first, self.last, self.on_committed, self.written = first, last, on_committed, written


class _TenantBuffer:
    """Buffered events of one tenant for one stream. `timer`: that of the next frame, while no frame is being stored."""

    __slots__ = ("is_delayed", "is_storing", "key", "lines", "subject", "timer", "waiters")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key, self.subject = key, frame_subject(*key)
        self.lines: list[bytes] = []
        self.waiters: list[_Waiter] = []
        self.timer: asyncio.Handle | None = None
        self.is_delayed = False  # the timer waits for more events
        self.is_storing = False


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
        self._drained: asyncio.Future[None] | None = None
        self._syncing = 0  # frames that are stored and not durable yet
        self.dropped = 0  # events dropped since the start

    @property
    def is_full(self) -> bool:
        """True if `commit` would fail now."""
        return self._waiting_bytes > self._waiting_bytes_max

    def record(self, context: RequestContext | None, *events: Event) -> None:
        """Store events of one tenant and one stream soon. Does not wait and does not raise.

        Empty ids, times, tenant, key and request are filled in from the context. Job events follow the tenant's audit mode.
        """
        complete = self._complete(context, events)
        if not complete or self._is_dropped(complete):
            return
        if self.is_full:
            self._drop(complete[0].stream, len(complete))
            return
        self._add(complete[0], _lines(complete), None)

    async def commit(self, context: RequestContext | None, *events: Event, written: Written | None = None) -> None:
        """Like `record`, but return once the events are durable, and what was `written` before (`commit_callback`).

        Raises EngineUnavailable, also when the buffer is full. The operation that the events report has happened all the same.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commit_callback(context, events, partial(resolve, future), written)
        await future

    def commit_callback(
        self, context: RequestContext | None, events: Sequence[Event], on_committed: OnCommitted, written: Written | None = None
    ) -> None:
        """Like `commit`, but calls `on_committed`, which must not raise, with the error or None; at once if nothing is stored.

        `written`: what the events report, which is synced together with them. It is durable when `on_committed` is called, with
        an error of the events, too; otherwise the error is that of its sync.
        """
        complete = self._complete(context, events)
        if not complete or self._is_dropped(complete):
            self._sync_written(written, None, on_committed)
        elif self.is_full:
            full = EngineUnavailable("too many events are waiting to be stored", retry_after=1)
            self._sync_written(written, full, on_committed)
        else:
            self._add(complete[0], _lines(complete), on_committed, written)

    def _sync_written(self, written: Written | None, problem: EngineUnavailable | None, on_committed: OnCommitted) -> None:
        """Sync what the events report, although these are not stored."""
        if written is None:
            on_committed(problem)
        else:
            self._committers.sync(dict([written]), lambda error: on_committed(error or problem))

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
            if context is not None and (fields := _caller_fields(type(event))):
                _fill_caller(event, fields, context)
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

    def _add(self, first: Event, lines: list[bytes], on_committed: OnCommitted | None, written: Written | None = None) -> None:
        key = (first.stream, first.tenant)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _TenantBuffer(key)
        if on_committed is not None:
            buffer.waiters.append(_Waiter(len(buffer.lines), len(buffer.lines) + len(lines), on_committed, written))
        buffer.lines.extend(lines)
        self._waiting_bytes += sum(map(len, lines))
        if not buffer.is_storing:
            self._schedule(buffer)

    def _schedule(self, buffer: _TenantBuffer) -> None:
        """Store a frame after the callbacks that are due now, or after a while if no caller waits."""
        loop = asyncio.get_running_loop()
        is_urgent = bool(buffer.waiters) or self._drained is not None
        if buffer.timer is not None:
            if not (is_urgent and buffer.is_delayed):
                return
            buffer.timer.cancel()
        buffer.is_delayed = not is_urgent
        delayed = loop.call_soon if is_urgent else partial(loop.call_later, _COMPANY_SECONDS)
        buffer.timer = delayed(self._store_frame, buffer)

    def _store_frame(self, buffer: _TenantBuffer) -> None:
        if self._committers.are_held:  # events report what has happened: they are stored later, and not dropped
            buffer.timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._store_frame, buffer)
            return
        buffer.timer, buffer.is_storing = None, True
        lines, waiters = self._take_frame(buffer)
        on_outcome = partial(self._on_outcome, buffer, lines, waiters)
        try:
            message = PendingMessage(buffer.subject, pack(lines), new_id(), frame_headers(len(lines)))
            self._committers.of(buffer.key[0]).submit_callback((message,), on_outcome, is_synced=False)
        except Exception as problem:  # bugs, too: waiting callers must not hang
            on_outcome(problem)

    def _on_outcome(self, buffer: _TenantBuffer, lines: list[bytes], waiters: list[_Waiter], outcome: Outcome) -> None:
        """The engine has the frame, or has refused it. The next frame does not wait until this one is durable."""
        stream = buffer.key[0]
        self._waiting_bytes -= sum(map(len, lines))
        buffer.is_storing = False
        if buffer.lines:
            self._schedule(buffer)
        elif self._buffers.get(buffer.key) is buffer:
            del self._buffers[buffer.key]
        if isinstance(outcome, Exception):
            self._drop(stream, len(lines))
            log.error("events_not_stored", stream=stream, count=len(lines), error=repr(outcome))
            for waiter in waiters:
                problem = EngineUnavailable("the events could not be stored", retry_after=1)
                self._sync_written(waiter.written, problem, partial(_notify, waiter))
            self._check_drained()
            return
        metrics.events_framed.labels(stream).inc(len(lines))
        metrics.frame_events.observe(len(lines))
        complete = [waiter for waiter in waiters if waiter.last <= 0]
        self._syncing += 1
        self._committers.sync(_written(stream, outcome[-1].sequence, complete), partial(self._on_synced, complete))

    def _on_synced(self, waiters: Sequence[_Waiter], problem: EngineUnavailable | None) -> None:
        self._syncing -= 1
        for waiter in waiters:
            _notify(waiter, problem)
        self._check_drained()

    def _check_drained(self) -> None:
        if self._drained is not None and not self._buffers and not self._syncing:
            self._drained.set_result(None)
            self._drained = None

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
        """Wait until all events are stored or dropped."""
        while self._buffers or self._syncing:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            for buffer in self._buffers.values():
                if not buffer.is_storing:
                    self._schedule(buffer)
            await asyncio.shield(self._drained)


def _lines(events: Sequence[Event]) -> list[bytes]:
    """The line of each event; an attached one is part of the line before it, so that a frame has both."""
    lines: list[bytes] = []
    for event in events:
        line = encode_event(event)
        if event.is_attached and lines:
            lines[-1] += b"\n" + line
        else:
            lines.append(line)
    return lines


def _written(stream: str, sequence: int, waiters: Sequence[_Waiter]) -> dict[str, int]:
    """The streams to sync: that of a frame, and those of what its events report."""
    found: dict[str, int] = {}
    for waiter in waiters:
        if waiter.written is not None:
            name, last = waiter.written
            found[name] = max(last, found.get(name, 0))
    found[stream] = sequence
    return found


@cache
def _caller_fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in ("key_id", "request_id") if name in kind.__struct_fields__)


def _fill_caller(event: Event, fields: tuple[str, ...], context: RequestContext) -> None:
    for name in fields:
        if getattr(event, name) == "":
            force_setattr(event, name, context.caller.key_id if name == "key_id" else context.request_id)


def _notify(waiter: _Waiter, problem: EngineUnavailable | None) -> None:
    try:
        waiter.on_committed(problem)
    except Exception:  # a bug, which must not stop the callbacks of others
        log.exception("event_callback_failed")
