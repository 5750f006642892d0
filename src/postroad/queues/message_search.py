"""Search of messages over all queues and states, within a budget: a request returns what it found, how much it compared, and
where to continue."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.message_search import FoundMessage, MessageSearchPage, MessageSearchQuery
from postroad.api.queues import PeekedMessage
from postroad.kernel.clock import Clock, epoch_ms
from postroad.kernel.errors import InvalidParameter, PostroadError
from postroad.kernel.identity import Caller
from postroad.kernel.ids import id_time_ms
from postroad.kernel.matching import glob_matches
from postroad.kernel.names import escape
from postroad.queues.browsing import QueueBrowser
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord
from postroad.queues.responses import dead_message_of, peeked_message_of

STATES = ("dead", "ready", "delayed")
_CONCURRENCY = 16
_FIRST_READ = 500  # messages of a queue and state that are read beside others; the rest of a large one is read alone
_NEXT_READ = 2_000
_SCANNED_MAX = 20_000
_SECONDS_MAX = 0.6
_FOUND_SECONDS_MAX = 0.25  # after a hit: the caller gets it, and continues
_EARLY_MS = 60_000  # a message can be stored before the time in its id, if the clocks of two machines differ
_RECENT_MESSAGES = 10_000  # about so many are searched before all older ones
_CURSOR = re.compile(r"(?P<slice>[aor])(?P<at>[0-9]{1,14})~(?P<sequence>[0-9]{1,19})~(?P<state>[a-z]+)~(?P<queue>.+)", re.DOTALL)
_RECENT_MS_MIN, _RECENT_MS_MAX = 5_000, 600_000


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of time that is searched in all queues before the next one. `name` is its part of a cursor."""

    name: str
    since_ms: int | None
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """A state of a queue in a slice, from a sequence on (before it, if the newest are first). 0: from the beginning."""

    slice_name: str
    at_ms: int
    sequence: int
    state: str
    queue: str

    @property
    def cursor(self) -> str:
        return f"{self.slice_name}{self.at_ms}~{self.sequence}~{self.state}~{self.queue}"


@dataclass(frozen=True, slots=True)
class _Step:
    slice: Slice
    record: QueueRecord
    state: str


@dataclass(frozen=True, slots=True)
class _Found:
    messages: list[FoundMessage]
    scanned: int
    next_sequence: int | None


class MessageSearch:
    """`rate_of` is the number of messages that a tenant publishes per second."""

    def __init__(
        self,
        lifecycle: QueueLifecycle,
        browser: QueueBrowser,
        dead_letters: DeadLetters,
        clock: Clock,
        rate_of: Callable[[str], float],
    ) -> None:
        self._lifecycle, self._browser, self._dead_letters = lifecycle, browser, dead_letters
        self._clock, self._rate_of = clock, rate_of

    async def page(self, caller: Caller, query: MessageSearchQuery) -> MessageSearchPage:
        """The messages of the last moments in all queues, then the older ones. Queues in the order of their names; in each the
        dead letters, the ready and the delayed messages.

        Raises InvalidParameter for an invalid cursor, EngineUnavailable.
        """
        glob = query.queue or "*"
        records = [one for one in self._lifecycle.records(caller) if glob == "*" or glob_matches(glob, one.name)]
        start = _parse_cursor(query.cursor)
        slices = self._slices(caller, query, start)
        states = [state for state in STATES if query.state in (None, state)]
        steps = [_Step(part, record, state) for part in slices for record in records for state in states]
        if start is not None:
            steps = [one for one in steps if one.slice.name != start.slice_name or _order_of(one) >= _order(start)]
        at_ms = start.at_ms if start is not None else (slices[0].since_ms or 0) if slices[0].name == "r" else 0
        pages = _PageBuilder(query, records, slices[-1], at_ms)
        await self._search(query, steps, start, pages)
        return pages.build(steps)

    def _slices(self, caller: Caller, query: MessageSearchQuery, start: Place | None) -> tuple[Slice, ...]:
        """All at once if the caller limits the time; else what is recent, and what is older. A cursor leaves out those before."""
        is_limited = query.since is not None or query.until is not None or query.message_id is not None
        if is_limited or query.order == "oldest":
            if start is not None and start.slice_name != "a":
                raise InvalidParameter("the cursor was returned by another search")
            return (Slice("a", epoch_ms(query.since), epoch_ms(query.until)),)
        at_ms = start.at_ms if start is not None else self._clock() - self._recent_ms(caller.tenant)
        both = (Slice("r", at_ms, None), Slice("o", None, at_ms))
        if start is None or start.slice_name == "r":
            return both
        if start.slice_name != "o":
            raise InvalidParameter("the cursor was returned by another search")
        return both[1:]

    def _recent_ms(self, tenant: str) -> int:
        rate = self._rate_of(tenant)
        return _RECENT_MS_MAX if rate <= 0 else int(min(max(_RECENT_MESSAGES / rate * 1000, _RECENT_MS_MIN), _RECENT_MS_MAX))

    async def _search(
        self, query: MessageSearchQuery, steps: Sequence[_Step], start: Place | None, pages: "_PageBuilder"
    ) -> None:
        """Small queues are read beside each other. A large one is read to its end before the next: what others of its round have
        found is lost if the budget ends there, so after a large one fewer are read at once."""
        index, width = 0, _CONCURRENCY
        while index < len(steps) and not pages.is_ended(steps, index):
            some, is_large = steps[index : index + width], False
            sequences = [start.sequence if start is not None and _is_at(one, start) else 0 for one in some]
            reads = [self._read(query, one, at, pages.left, _FIRST_READ) for one, at in zip(some, sequences, strict=True)]
            for step, read in zip(some, await asyncio.gather(*reads, return_exceptions=True), strict=True):
                is_large |= isinstance(read, _Found) and read.next_sequence is not None
                if not await self._finish(query, step, read, pages):
                    return
                index += 1
            width = 2 if is_large else min(width * 2, _CONCURRENCY)

    async def _finish(self, query: MessageSearchQuery, step: _Step, read: _Found | BaseException, pages: "_PageBuilder") -> bool:
        """Read the rest of a place; False if the page ends in it."""
        while True:
            if isinstance(read, PostroadError):  # the queue is being deleted, or does not answer: the others are searched
                pages.unreadable.append(step.record.name)
                return True
            if isinstance(read, BaseException):
                raise read
            following = pages.take(read)
            if following is None:
                return True
            if pages.is_full:
                pages.end_in(step, following)
                return False
            try:
                read = await self._read(query, step, following, pages.left, min(_NEXT_READ, pages.left_to_scan))
            except PostroadError as problem:
                read = problem

    async def _read(self, query: MessageSearchQuery, step: _Step, sequence: int, limit: int, scanned_max: int) -> _Found:
        """Search one state of a queue, from the position of the cursor."""
        record, state, is_newest = step.record, step.state, query.order == "newest"
        since_ms, until_ms = step.slice.since_ms, step.slice.until_ms
        if query.message_id is not None:  # ids begin with the time: nothing older can match
            at_ms = id_time_ms(query.message_id)
            since_ms = max(since_ms or 0, (at_ms or 0) - _EARLY_MS)
        if state == "dead":
            wanted = msgspec.convert(query, DeadLetterFilter, from_attributes=True)
            if step.slice.name != "a":
                times = {"since": _time(step.slice.since_ms), "until": _time(step.slice.until_ms)}
                wanted = msgspec.structs.replace(wanted, **times)
            letters = await self._dead_letters.page(
                record,
                wanted,
                limit=limit,
                from_sequence=1 if is_newest else max(1, sequence),
                before_sequence=sequence or None,
                is_newest_first=is_newest,
                scanned_max=scanned_max,
            )
            dead = [dead_message_of(one.letter, one.message, query.body_max, one.sequence) for one in letters.items]
            return _Found([_found(record.name, one) for one in dead], letters.scanned, letters.next_sequence)
        if state != "delayed" and not record.is_readable:
            return _Found([], 0, None)
        if query.error is not None or query.error_group is not None or query.reason is not None:
            return _Found([], 0, None)  # only dead letters have a cause
        found = await self._browser.peek(
            record,
            query,
            limit=limit,
            from_sequence=sequence or (0 if is_newest else 1),
            is_delayed=state == "delayed",
            since_ms=since_ms,
            until_ms=until_ms,
            is_newest_first=is_newest,
            scanned_max=scanned_max,
        )
        peeked = [peeked_message_of(one.message, one.state, query.body_max, one.until_ms, one.sequence) for one in found.items]
        return _Found([_found(record.name, one) for one in peeked], found.scanned, found.next_sequence)


class _PageBuilder:
    """Collects what is found until a page is full: of hits, of compared messages, or of time."""

    def __init__(self, query: MessageSearchQuery, records: Sequence[QueueRecord], last: Slice, at_ms: int) -> None:
        self._query, self._records, self._last, self._at_ms = query, records, last, at_ms
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._found: list[FoundMessage] = []
        self._scanned = 0
        self._end: Place | None = None
        self.unreadable: list[str] = []

    @property
    def left(self) -> int:
        """How many hits the page has space for."""
        return max(1, self._query.limit - len(self._found))

    @property
    def left_to_scan(self) -> int:
        return max(1, _SCANNED_MAX - self._scanned)

    @property
    def is_full(self) -> bool:
        seconds = _FOUND_SECONDS_MAX if self._found else _SECONDS_MAX
        is_late = self._loop.time() - self._started >= seconds
        return len(self._found) >= self._query.limit or self._scanned >= _SCANNED_MAX or is_late

    def is_ended(self, steps: Sequence[_Step], index: int) -> bool:
        """True if the page is full before this step, which then is the next one."""
        if self._end is None and index and self.is_full:
            self.end_in(steps[index], 0)
        return self._end is not None

    def end_in(self, step: _Step, sequence: int) -> None:
        self._end = Place(step.slice.name, self._at_ms, sequence, step.state, step.record.name)

    def take(self, read: _Found) -> int | None:
        """Add what was found; return where the search of this place continues, None if it is complete."""
        left = self._query.limit - len(self._found)
        self._found += read.messages[:left]
        self._scanned += read.scanned
        return _next(read, left, is_newest_first=self._query.order == "newest")

    def build(self, steps: Sequence[_Step]) -> MessageSearchPage:
        end = self._end
        at_end = None if end is None else (end.slice_name == self._last.name, _order(end))
        left = {
            step.record.name
            for step in steps
            if at_end is not None and step.slice is self._last and (not at_end[0] or _order_of(step) >= at_end[1])
        }
        return MessageSearchPage(
            items=self._found,
            next_cursor=None if end is None else end.cursor,
            scanned=self._scanned,
            matched=len(self._found),
            queues_total=len(self._records),
            queues_done=sum(1 for record in self._records if record.name not in left),
            unreadable=tuple(dict.fromkeys(self.unreadable)),
        )


def _found(queue: str, message: PeekedMessage) -> FoundMessage:
    return FoundMessage(queue=queue, **{name: getattr(message, name) for name in message.__struct_fields__})


def _next(read: _Found, left: int, *, is_newest_first: bool) -> int | None:
    """Where the search of this place continues; None if it is complete."""
    if len(read.messages) <= left:
        return read.next_sequence
    last = read.messages[left - 1].sequence if left else 0
    if not left:
        return 0
    return last if is_newest_first else last + 1


def _is_at(step: _Step, start: Place) -> bool:
    return (step.slice.name, step.record.name, step.state) == (start.slice_name, start.queue, start.state)


def _order_of(step: _Step) -> tuple[str, int]:
    return escape(step.record.name), STATES.index(step.state)


def _order(place: Place) -> tuple[str, int]:
    return escape(place.queue), STATES.index(place.state)


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def _parse_cursor(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None or found["state"] not in STATES:
        raise InvalidParameter("the cursor was not returned by this search")
    return Place(found["slice"], int(found["at"]), int(found["sequence"]), found["state"], found["queue"])
