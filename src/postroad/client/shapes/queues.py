"""Queues and messages, as the client hands them back."""

from functools import cached_property
from typing import Any

import msgspec


class Published(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    message_id: str
    job_id: str
    enqueued_at: str


class Fault(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why one message of a batch, or one receipt of many, failed."""

    code: str
    status: int
    title: str
    retryable: bool
    detail: str = ""


class BatchItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message's ids, or the problem that kept it from being stored."""

    message_id: str | None = None
    job_id: str | None = None
    enqueued_at: str | None = None
    problem: Fault | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    published: int
    failed: int
    results: list[BatchItem]


class Message(msgspec.Struct, frozen=True, rename="camel", kw_only=True, dict=True):
    """A leased message. `receipt_id` settles it; `payload` is decoded when it is first asked for, `raw_payload` is its text."""

    receipt_id: str
    message_id: str
    job_id: str
    raw_payload: msgspec.Raw = msgspec.field(name="payload")
    headers: dict[str, str]
    attempt: int
    enqueued_at: str
    correlation_id: str | None = None
    traceparent: str | None = None

    @cached_property
    def payload(self) -> Any:
        return msgspec.json.decode(self.raw_payload)

    def __repr__(self) -> str:
        return f"Message(message_id={self.message_id!r}, attempt={self.attempt}, payload={self.payload!r})"


class Pulled(msgspec.Struct, frozen=True):
    messages: list[Message]


class Settled(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    receipt_id: str
    ok: bool
    problem: Fault | None = None


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of settling: of several receipts, `results` says it of each."""

    ok: bool
    results: list[Settled] = []


class Extended(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`new_receipt_id` settles the message from now on."""

    ok: bool
    new_receipt_id: str
    lease_until: str


class ExtendedItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Of one of several receipts: the new one, or the problem."""

    receipt_id: str
    ok: bool
    new_receipt_id: str | None = None
    lease_until: str | None = None
    problem: Fault | None = None


class ExtendedMany(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    results: list[ExtendedItem]


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    visibility_timeout_ms: int
    retention_ms: int
    dedupe_window_ms: int | None
    max_attempts: int
    retry_delays_ms: tuple[int, ...]
    max_messages: int
    replicas: int | None
    geo: str | None
    schema: dict[str, Any] | None
    expected_drain_seconds: int | None
    archive: bool


class QueueStats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is in a queue; `oldest_age_ms` is None where nothing is ready or leased."""

    ready: int
    leased: int
    delayed: int
    dead: int
    oldest_age_ms: int | None
    in_per_second: float
    out_per_second: float


class Queue(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`stats` is there when one queue was asked for, or the list was asked for it."""

    name: str
    settings: QueueSettings
    paused: bool
    created_at: str
    updated_at: str
    stats: QueueStats | None = None


class QueuePage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    queues: list[Queue]
    next_cursor: str | None


class SeenMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message that was looked at, not leased. One over `body_max` comes as its beginning, the text `payload_start`."""

    message_id: str
    job_id: str
    state: str
    headers: dict[str, str]
    enqueued_at: str
    payload_bytes: int
    payload: Any = None
    payload_start: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None


class SeenPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`scanned` were looked at, `matched` fit. With a `next_cursor` there is more to look at, even if nothing fit here."""

    messages: list[SeenMessage]
    scanned: int
    matched: int
    next_cursor: str | None


class DeadMessage(SeenMessage, frozen=True, kw_only=True):
    """A message that was given up, and why."""

    reason: str
    last_error: str | None
    attempts: int
    first_failed_at: str | None
    dead_at: str


class DeadPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """As a page of messages; `total` dead letters are there."""

    total: int
    scanned: int
    matched: int
    next_cursor: str | None
    messages: list[DeadMessage]


class DeadGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    reason: str
    count: int
    first_at: str
    last_at: str


class DeadGroups(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Largest first. `matched` of the `total` are in them: with very many dead letters, not all are looked at."""

    total: int
    scanned: int
    matched: int
    groups: list[DeadGroup]


class Purged(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How many were dropped, or would be."""

    count: int
    dry_run: bool
