"""Queues and messages, as the client hands them back."""

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


class Message(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A leased message. `payload` is decoded; `receipt_id` settles it."""

    receipt_id: str
    message_id: str
    job_id: str
    payload: Any
    headers: dict[str, str]
    attempt: int
    enqueued_at: str
    correlation_id: str | None = None
    traceparent: str | None = None


class Pulled(msgspec.Struct, frozen=True):
    messages: list[Message]


class Settled(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    receipt_id: str
    ok: bool
    problem: Fault | None = None


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    results: list[Settled] = []


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    visibility_timeout_ms: int
    retention_ms: int
    dedupe_window_ms: int | None
    max_messages: int
    replicas: int | None


class QueueStats(msgspec.Struct, frozen=True):
    ready: int
    leased: int
    delayed: int


class Queue(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`stats` is there when one queue was asked for."""

    name: str
    settings: QueueSettings
    created_at: str
    updated_at: str
    stats: QueueStats | None = None


class QueuePage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    queues: list[Queue]
    next_cursor: str | None
