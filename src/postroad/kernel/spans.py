"""Spans of distributed traces: what was done, when, and as a part of what. Only sampled work has one.

Code that can be traced gets a `Span | None`, the span that its work belongs to. None, because tracing is off or the trace is not
sampled, costs one comparison.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from enum import IntEnum
from random import Random
from typing import NamedTuple

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_ids = Random()  # noqa: S311  # ids of spans are no secrets
_random_bits = _ids.getrandbits

Attribute = str | int | float | bool


class SpanKind(IntEnum):
    """With the numbers of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class SpanContext(NamedTuple):
    """The identity of a span, also of one in another system. Both ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """The context in a W3C `traceparent` header; None if it is missing or malformed."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    return None if found is None else SpanContext(found[1], found[2], int(found[3], 16) & 1 == 1)


class Span:
    """One operation of a sampled trace. It is recorded once, when it ends. As a context manager it ends with the block."""

    __slots__ = (
        "_record",
        "attributes",
        "end_ns",
        "error",
        "kind",
        "links",
        "name",
        "parent_id",
        "span_id",
        "start_ns",
        "trace_id",
    )

    def __init__(
        self,
        record: "Callable[[Span], None]",
        trace_id: str,
        parent_id: str,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Attribute],
        links: Sequence[SpanContext] = (),
        start_ns: int = 0,
    ) -> None:
        """`parent_id` is empty for the first span of a trace, `start_ns` 0 for now."""
        self._record, self.trace_id, self.parent_id = record, trace_id, parent_id
        self.span_id = f"{_random_bits(64) or 1:016x}"
        self.name, self.kind, self.attributes, self.links = name, kind, attributes, links
        self.start_ns, self.end_ns = start_ns or time.time_ns(), 0
        self.error = ""  # of a failed operation: an error code

    @property
    def context(self) -> SpanContext:
        return SpanContext(self.trace_id, self.span_id)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    def child(
        self,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Attribute],
        links: Sequence[SpanContext] = (),
        start_ns: int = 0,
    ) -> "Span":
        return Span(self._record, self.trace_id, self.span_id, name, kind, attributes, links, start_ns)

    def end(self, error: BaseException | str | None = None) -> None:
        """Record the span. Further calls have no effect."""
        if self.end_ns:
            return
        self.end_ns = time.time_ns()
        if error is not None:
            self.error = error if isinstance(error, str) else error_type(error)
        self._record(self)

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.end(error)


NO_SPAN = nullcontext()  # `with span or NO_SPAN:` creates nothing where there is no span
current_span: ContextVar[Span | None] = ContextVar("current_span", default=None)  # for log lines, `log_fields`


def error_type(error: BaseException) -> str:
    """The code of an expected error, else the name of its class."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


def log_fields() -> Mapping[str, str]:
    """The ids of the present span for a log line. A span that has ended does not count: a task that was started meanwhile, and
    serves others, too, inherits the variable."""
    span = current_span.get()
    return {} if span is None or span.end_ns else {"trace_id": span.trace_id, "span_id": span.span_id}


class Sampler(NamedTuple):
    """Decides which traces are recorded, by the last 64 bits of a trace's id: those below `bound`.

    `follows_parent`: where a trace was begun elsewhere, its flag decides instead.
    """

    follows_parent: bool
    bound: int

    def samples(self, parent: SpanContext) -> bool:
        return parent.is_sampled if self.follows_parent else int(parent.trace_id[16:], 16) < self.bound


class Tracer:
    """Begins the spans of a process. There is none while tracing is off."""

    def __init__(self, sampler: Sampler, record: Callable[[Span], None]) -> None:
        self._sampler, self._record = sampler, record

    def begin(self, traceparent: str | None, name: str, kind: SpanKind) -> Span | None:
        """A span of the trace that `traceparent` names, or the first one of a new trace; None if it is not sampled."""
        parent = None if traceparent is None else parse_traceparent(traceparent)
        if parent is not None:
            return self.continue_from(parent, name, kind, {}) if self._sampler.samples(parent) else None
        low = _random_bits(64)
        if low >= self._sampler.bound:
            return None
        return Span(self._record, f"{_random_bits(64):016x}{low or 1:016x}", "", name, kind, {})

    def sampled_context(self, traceparent: str | None) -> SpanContext | None:
        """The context that a message was published with, if its trace is sampled."""
        parent = None if traceparent is None else parse_traceparent(traceparent)
        return parent if parent is not None and self._sampler.samples(parent) else None

    def continue_from(
        self,
        parent: SpanContext,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Attribute],
        links: Sequence[SpanContext] = (),
        start_ns: int = 0,
    ) -> Span:
        """A span of a sampled trace that another process began."""
        return Span(self._record, parent.trace_id, parent.span_id, name, kind, attributes, links, start_ns)
