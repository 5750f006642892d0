"""Messages for live readers: encoded once for each form of connection, and matched once for equal selections. Pure."""

import base64
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import msgspec
from msgspec import UNSET

from postroad.api.topics import LiveTopicMessage, TopicGap, TopicReady, TopicReset
from postroad.http.sse import frame, id_frame
from postroad.http.websocket_frames import text_frame
from postroad.kernel.clock import rfc3339
from postroad.kernel.json import encode
from postroad.kernel.matching import pattern_matches
from postroad.topics.live_position import event_id
from postroad.topics.records import StoredTopicMessage, TopicRecord, json_payload

_CACHED_MAX = 64  # selections whose result is remembered for a message, and forms


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of a reader: by patterns of subjects, and by content. Equal selections are matched once per message.

    `granted` are the patterns that its credential is restricted to, None for all; both must match. `content_key` stands for
    `content` in comparisons. `latest_ms`: of each subject, only the newest message in this interval.
    """

    patterns: tuple[str, ...]
    content_key: Hashable = None
    content: Callable[[StoredTopicMessage], bool] | None = field(default=None, compare=False)
    granted: tuple[str, ...] | None = None
    latest_ms: int = 0

    def selects(self, message: StoredTopicMessage) -> bool:
        subject = message.subject
        return (
            any(pattern_matches(one, subject) for one in self.patterns)
            and (self.granted is None or any(pattern_matches(one, subject) for one in self.granted))
            and (self.content is None or self.content(message))
        )


class LiveMessage:
    """A message for all readers."""

    __slots__ = ("__dict__", "_forms", "_record", "_selected", "_stored", "sequence")

    def __init__(self, record: TopicRecord, stored: StoredTopicMessage) -> None:
        self.sequence = stored.sequence
        self._record, self._stored = record, stored
        self._selected: dict[Selection, bool] = {}
        self._forms: dict[str | None, bytes] = {}

    @property
    def subject(self) -> str:
        return self._stored.subject

    @cached_property
    def data(self) -> bytes:
        return message_data(self._record, self._stored)

    def frame(self, form: "LiveForm") -> bytes:
        known = self._forms.get(form.key)
        if known is None:
            known = form.message(self._record, self)
            if len(self._forms) < _CACHED_MAX:
                self._forms[form.key] = known
        return known

    def is_selected(self, selection: Selection) -> bool:
        known = self._selected.get(selection)
        if known is None:
            known = selection.selects(self._stored)
            if len(self._selected) < _CACHED_MAX:
                self._selected[selection] = known
        return known


def message_data(record: TopicRecord, stored: StoredTopicMessage) -> bytes:
    payload = json_payload(stored)
    return encode(
        LiveTopicMessage(
            subject=stored.subject,
            nats_subject=stored.nats_subject,
            topic=record.name,
            sequence=stored.sequence,
            timestamp=rfc3339(stored.at_ms),
            headers=stored.headers,
            body_b64=base64.b64encode(stored.body).decode(),
            payload=UNSET if payload is None else payload,
            content_type=stored.content_type,
            traceparent=stored.traceparent,
            hops=stored.hops,
            group_id=stored.group,
        )
    )


# The forms of a connection


class LiveForm(Protocol):
    """How events are written on a connection. Forms with the same key write the same bytes."""

    @property
    def key(self) -> str | None: ...

    def message(self, record: TopicRecord, message: LiveMessage) -> bytes: ...

    def notice(self, record: TopicRecord, event: str, data: msgspec.Struct, sequence: int) -> bytes: ...

    def position(self, record: TopicRecord, sequence: int) -> bytes: ...


class EventForm:
    """Server-sent events."""

    key = None

    def message(self, record: TopicRecord, message: LiveMessage) -> bytes:
        return self._frame(record, "message", message.data, message.sequence)

    def notice(self, record: TopicRecord, event: str, data: msgspec.Struct, sequence: int) -> bytes:
        return self._frame(record, event, encode(data), sequence)

    def position(self, record: TopicRecord, sequence: int) -> bytes:
        """An id without data: clients remember it, and no event is dispatched."""
        return id_frame(event_id(record.incarnation, sequence))

    def _frame(self, record: TopicRecord, event: str, data: bytes, sequence: int) -> bytes:
        """White space in a payload may have a carriage return, which would end a line of the event."""
        return frame(data.replace(b"\r", b" "), event=event, event_id=event_id(record.incarnation, sequence))


class SocketForm:
    """JSON text messages on a WebSocket. `ref` names the subscription on a connection with several; empty without."""

    __slots__ = ("_ref", "key")

    def __init__(self, ref: str = "") -> None:
        self.key = ref
        self._ref = b'"ref":%b,' % encode(ref) if ref else b""

    def message(self, record: TopicRecord, message: LiveMessage) -> bytes:
        return self._frame(record, "message", message.data, message.sequence)

    def notice(self, record: TopicRecord, event: str, data: msgspec.Struct, sequence: int) -> bytes:
        return self._frame(record, event, encode(data), sequence)

    def position(self, record: TopicRecord, sequence: int) -> bytes:
        data = b'{"topic":%b,"sequence":%d}' % (encode(record.name), sequence)
        return self._frame(record, "position", data, sequence)

    def _frame(self, record: TopicRecord, op: str, data: bytes, sequence: int) -> bytes:
        identifier = event_id(record.incarnation, sequence).encode()
        return text_frame(b'{"op":"%b",%b"id":"%b",%b' % (op.encode(), self._ref, identifier, data[1:]))


def ready_frame(form: LiveForm, record: TopicRecord, position: int) -> bytes:
    return form.notice(record, "ready", TopicReady(topic=record.name, sequence=position), position)


def gap_frame(form: LiveForm, record: TopicRecord, gap: tuple[int, int]) -> bytes:
    return form.notice(record, "gap", TopicGap(topic=record.name, from_sequence=gap[0], to_sequence=gap[1]), gap[1])


def reset_frame(form: LiveForm, record: TopicRecord, position: int) -> bytes:
    data = TopicReset(topic=record.name, incarnation=record.incarnation, sequence=position + 1)
    return form.notice(record, "reset", data, position)
