"""Pipelined publishing: messages are sent without waiting, acknowledged asynchronously, and resent after a lost connection."""

import json
import logging
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from spark_jetstream import protocol
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, InvalidRow, Rejected, Unreachable
from spark_jetstream.retry import ATTEMPTS_MAX, backoff_seconds

log = logging.getLogger("spark_jetstream")

_SEND_BYTES = 256 * 1024
_PENDING_BYTES_MAX = 8 * 1024 * 1024


class Message(NamedTuple):
    """A message to publish; `headers` is empty or comes from `protocol.encode_headers`."""

    subject: bytes
    headers: bytes
    data: bytes

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.data)


class Publisher:
    """Publishes in order, except that a resent message is stored after those that followed it."""

    def __init__(self, client: Client, max_pending: int) -> None:
        self._client = client
        self._max_pending = max_pending
        self._pending: dict[int, Message] = {}
        self._pending_bytes = 0
        self._to_resend: list[int] = []
        self._failures = 0
        self._inbox = b""
        self.stored = 0
        self.duplicates = 0

    def publish(self, messages: Iterable[Message]) -> None:
        """Return when every message is acknowledged.

        Raises Rejected with the server's error, InvalidRow for a message that is too large, or Unreachable.
        """
        unsent: list[int] = []
        unsent_bytes = 0
        self._connect()
        for number, message in enumerate(messages):
            if message.size > self._client.max_payload:
                raise InvalidRow(
                    f"a message for {message.subject.decode()!r} has {message.size} bytes including headers, "
                    f"but the server accepts at most {self._client.max_payload}"
                )
            self._pending[number] = message
            self._pending_bytes += message.size
            unsent.append(number)
            unsent_bytes += message.size
            is_full = len(self._pending) >= self._max_pending or self._pending_bytes >= _PENDING_BYTES_MAX
            if is_full or unsent_bytes >= _SEND_BYTES:
                self._send(unsent)
                unsent, unsent_bytes = [], 0
                if is_full:
                    self._await_acks(self._max_pending // 2, _PENDING_BYTES_MAX // 2)
        self._send(unsent)
        self._await_acks(0, 0)

    def _connect(self) -> None:
        if not self._client.is_open:
            self._client.open()
        self._inbox = self._client.inbox
        self._ack_pattern = protocol.ack_pattern(self._inbox)

    def _send(self, numbers: Iterable[int]) -> None:
        try:
            self._client.send(b"".join(self._encode(number) for number in numbers))
        except ConnectionLost as exc:
            self._reconnect(exc)

    def _await_acks(self, max_messages: int, max_bytes: int) -> None:
        """Process acknowledgements until at most this much is pending."""
        while self._exceeds(max_messages, max_bytes):
            try:
                self._process_acks()
                frame = self._client.poll() if self._exceeds(max_messages, max_bytes) else None
                if frame is not None:
                    self._process_reply(frame)
                if self._to_resend and len(self._to_resend) == len(self._pending):
                    self._resend()
            except ConnectionLost as exc:
                self._reconnect(exc)

    def _exceeds(self, max_messages: int, max_bytes: int) -> bool:
        return len(self._pending) > max_messages or self._pending_bytes > max_bytes

    def _process_acks(self) -> None:
        """Process a run of successful acknowledgements, the common case, by one regular expression."""
        client, numbers = self._client, list[int]()
        client.position, duplicates = protocol.parse_acks(client.buffer, client.position, self._ack_pattern, numbers)
        self.duplicates += duplicates
        for number in numbers:
            self._mark_stored(number)

    def _mark_stored(self, number: int) -> None:
        message = self._pending.pop(number, None)
        if message is not None:
            self._pending_bytes -= message.size
            self.stored += 1
            self._failures = 0

    def _process_reply(self, frame: protocol.Frame) -> None:
        """Process any other reply: an error, no responders, or an acknowledgement in an unusual form."""
        root, _, last = frame.subject.rpartition(b".")
        if root != self._inbox or int(last) not in self._pending:
            return
        number = int(last)
        subject = self._pending[number].subject.decode()
        if frame.status == 503:
            reason = f"no stream accepts messages for {subject!r}"
        else:
            reply = _json_object(frame)
            error = reply.get("error")
            if error is None and "stream" in reply:
                self.duplicates += bool(reply.get("duplicate"))
                self._mark_stored(number)
                return
            error = error or {"description": "the reply is not from JetStream"}
            reason = f"a message for {subject!r} was rejected: {error.get('description')} ({error.get('err_code')})"
            if error.get("code") != 429:  # too many requests
                raise Rejected(reason)
        if self._failures >= ATTEMPTS_MAX:
            raise Rejected(reason)
        self._to_resend.append(number)

    def _resend(self) -> None:
        """Wait, then resend messages that failed for a temporary reason, such as a leader election or too many requests."""
        self._failures += 1
        time.sleep(backoff_seconds(self._failures))
        numbers, self._to_resend = sorted(self._to_resend), []
        self._send(numbers)

    def _reconnect(self, exc: ConnectionLost) -> None:
        """Connect again and resend all pending messages. Message ids let the server discard those it has already stored."""
        while True:
            self._failures += 1
            if self._failures > ATTEMPTS_MAX:
                raise Unreachable(f"publishing failed {ATTEMPTS_MAX} times: {exc}") from exc
            log.warning("publishing: %s; resending %d messages", exc, len(self._pending))
            self._client.close()
            time.sleep(backoff_seconds(self._failures))
            try:
                self._connect()
                self._to_resend = []
                self._client.send(b"".join(self._encode(number) for number in sorted(self._pending)))
                return
            except ConnectionLost as lost:
                exc = lost

    def _encode(self, number: int) -> bytes:
        message = self._pending[number]
        return protocol.encode_publish(message.subject, b"%b.%d" % (self._inbox, number), message.headers, message.data)


def _json_object(frame: protocol.Frame) -> dict[str, Any]:
    try:
        value = json.loads(frame.data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
