"""Publishing many messages at once: sent in a row, each one's acknowledgement awaited, sent again when the connection breaks."""

import json
import logging
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from spark_jetstream import protocol
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, InvalidRow, Refused, Unreachable

log = logging.getLogger("spark_jetstream")

_SEND_BYTES = 256 * 1024
_PENDING_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 5


class Message(NamedTuple):
    subject: bytes
    headers: bytes
    data: bytes

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.data)


class Publisher:
    """Publishes in order. A message that had to be repeated comes later than those after it."""

    def __init__(self, client: Client, pending_max: int) -> None:
        self._client = client
        self._pending_max = pending_max
        self._pending: dict[int, Message] = {}
        self._pending_bytes = 0
        self._repeat: list[int] = []
        self._failures = 0
        self._inbox = b""
        self.stored = 0
        self.duplicates = 0

    def publish(self, messages: Iterable[Message]) -> None:
        """Return when every message is stored. Raises Refused with the server's words, InvalidRow, or Unreachable."""
        unsent: list[int] = []
        unsent_bytes = 0
        self._connect()
        for number, message in enumerate(messages):
            if message.size > self._client.max_payload:
                raise InvalidRow(
                    f"a message for {message.subject.decode()!r} has {message.size} bytes with its headers, "
                    f"and the server takes {self._client.max_payload}"
                )
            self._pending[number] = message
            self._pending_bytes += message.size
            unsent.append(number)
            unsent_bytes += message.size
            is_full = len(self._pending) >= self._pending_max or self._pending_bytes >= _PENDING_BYTES
            if is_full or unsent_bytes >= _SEND_BYTES:
                self._send(unsent)
                unsent, unsent_bytes = [], 0
                if is_full:
                    self._await(self._pending_max // 2, _PENDING_BYTES // 2)
        self._send(unsent)
        self._await(0, 0)

    def _connect(self) -> None:
        if not self._client.is_open:
            self._client.open()
        self._inbox = self._client.inbox
        self._ack = protocol.ack_pattern(self._inbox)

    def _send(self, numbers: Iterable[int]) -> None:
        try:
            self._client.send(b"".join(self._encoded(number) for number in numbers))
        except ConnectionLost as exc:
            self._again(exc)

    def _await(self, messages: int, size: int) -> None:
        """Take acknowledgements until no more than this is outstanding."""
        while self._pending and (len(self._pending) > messages or self._pending_bytes > size):
            try:
                self._take_acks()
                frame = self._client.poll() if len(self._pending) > messages or self._pending_bytes > size else None
                if frame is not None:
                    self._take(frame)
                if self._repeat and len(self._repeat) == len(self._pending):
                    self._pause()
            except ConnectionLost as exc:
                self._again(exc)

    def _take_acks(self) -> None:
        """The quick way for what is normal: everything was stored."""
        client, numbers = self._client, list[int]()
        client.position, duplicates = protocol.take_acks(client.buffer, client.position, self._ack, numbers)
        self.duplicates += duplicates
        for number in numbers:
            self._stored(number)

    def _stored(self, number: int) -> None:
        message = self._pending.pop(number, None)
        if message is not None:
            self._pending_bytes -= message.size
            self.stored += 1
            self._failures = 0

    def _take(self, frame: protocol.Frame) -> None:
        """An answer that is not as usual."""
        root, _, last = frame.subject.rpartition(b".")
        if root != self._inbox or int(last) not in self._pending:
            return
        number = int(last)
        subject = self._pending[number].subject.decode()
        if frame.status == 503:
            reason = f"no stream takes messages for {subject!r}"
        else:
            answer = _answer(frame)
            error = answer.get("error")
            if error is None and "stream" in answer:
                self.duplicates += bool(answer.get("duplicate"))
                self._stored(number)
                return
            error = error or {"description": "this is no answer of JetStream"}
            reason = f"a message for {subject!r} was refused: {error.get('description')} ({error.get('err_code')})"
            if error.get("code") != 429:  # too many at once
                raise Refused(reason)
        if self._failures >= _ATTEMPTS:
            raise Refused(reason)
        self._repeat.append(number)

    def _pause(self) -> None:
        """All that is left was turned away for a reason that may pass: a leader is elected, a queue is full."""
        self._failures += 1
        time.sleep(min(0.05 * 2**self._failures, 1.0))
        numbers, self._repeat = sorted(self._repeat), []
        self._send(numbers)

    def _again(self, exc: ConnectionLost) -> None:
        """Another connection, and everything that was not acknowledged once more: ids keep the server from storing it twice."""
        while True:
            self._failures += 1
            if self._failures > _ATTEMPTS:
                raise Unreachable(f"publishing failed {_ATTEMPTS} times: {exc}") from exc
            log.warning("publishing: %s; sending %d messages again", exc, len(self._pending))
            self._client.close()
            time.sleep(min(0.05 * 2**self._failures, 1.0))
            try:
                self._connect()
                self._repeat = []
                self._client.send(b"".join(self._encoded(number) for number in sorted(self._pending)))
                return
            except ConnectionLost as lost:
                exc = lost

    def _encoded(self, number: int) -> bytes:
        message = self._pending[number]
        return protocol.publish(message.subject, b"%b.%d" % (self._inbox, number), message.headers, message.data)


def _answer(frame: protocol.Frame) -> dict[str, Any]:
    try:
        answer = json.loads(frame.data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
