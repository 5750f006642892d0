"""The last attempts of each subscription: every failure, and at most one success per second."""

from collections import defaultdict

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.subscriptions.records import AttemptRecord, SubscriptionRecord, attempts_subject

ATTEMPTS_STREAM = "ATTEMPTS"
ATTEMPTS_MAX = 100
_BUFFER_MAX = 100  # per subscription between two flushes: the older ones would be dropped anyway
_SUCCESS_INTERVAL_MS = 1000
_AGE_DAYS = 7

_decode_line = msgspec.json.Decoder(AttemptRecord).decode
_encode = msgspec.json.Encoder().encode_lines

log = structlog.get_logger("postroad.subscriptions")


def attempts_stream(replicas: int) -> StreamSpec:
    """Frames of attempts: one message has the attempts of half a second, one per line."""
    options = {
        "max_msgs_per_subject": ATTEMPTS_MAX,
        "max_age": _AGE_DAYS * 86_400 * 1_000_000_000,
        "allow_atomic": True,
        "num_replicas": replicas,
        "duplicate_window": 60_000_000_000,
    }
    return StreamSpec(ATTEMPTS_STREAM, ("attempts.>",), options)


class AttemptLog:
    def __init__(self, connection: Connection, committers: Committers) -> None:
        self._connection, self._committers = connection, committers
        self._buffers: defaultdict[str, list[AttemptRecord]] = defaultdict(list)
        self._success_ms: dict[str, int] = {}

    def takes_success(self, record: SubscriptionRecord, at_ms: int) -> bool:
        """False if a success of this time is not kept, because another one was within the last second."""
        return at_ms - self._success_ms.get(record.incarnation, 0) >= _SUCCESS_INTERVAL_MS

    def add(self, record: SubscriptionRecord, attempt: AttemptRecord) -> None:
        """Keep the attempt until the next flush."""
        if attempt.outcome == "delivered":
            self._success_ms[record.incarnation] = attempt.at
        buffer = self._buffers[attempts_subject(record)]
        buffer.append(attempt)
        if len(buffer) > _BUFFER_MAX:
            del buffer[0]

    def forget(self, record: SubscriptionRecord) -> None:
        self._success_ms.pop(record.incarnation, None)

    async def flush(self) -> None:
        """Store the buffered attempts. They are lost if the engine is unavailable: they explain, nothing depends on them."""
        buffers, self._buffers = self._buffers, defaultdict(list)
        writes = [[PendingMessage(subject, _encode(attempts), new_id())] for subject, attempts in buffers.items() if attempts]
        if not writes:
            return
        outcomes = await self._committers.of(ATTEMPTS_STREAM).append_each(writes)
        failed = [outcome for outcome in outcomes if isinstance(outcome, PostroadError)]
        if failed:
            log.warning("attempts_not_stored", count=len(failed), code=failed[0].code)

    async def last(self, record: SubscriptionRecord) -> list[AttemptRecord]:
        """The last attempts, newest first."""
        attempts: list[AttemptRecord] = []
        position = 1
        while True:
            page = await stream_reader.read(
                self._connection, ATTEMPTS_STREAM, attempts_subject(record), position, limit=ATTEMPTS_MAX
            )
            for entry in page.entries:
                attempts += _decode_frame(entry.payload)
            if page.is_end:
                return attempts[: -ATTEMPTS_MAX - 1 : -1]
            position = page.next_sequence

    async def delete(self, record: SubscriptionRecord) -> None:
        await purge_stream(self._connection, ATTEMPTS_STREAM, attempts_subject(record))

    async def delete_tenant(self, tenant: str) -> None:
        await purge_stream(self._connection, ATTEMPTS_STREAM, f"attempts.{tenant}.>")


def _decode_frame(payload: bytes) -> list[AttemptRecord]:
    try:
        return [_decode_line(line) for line in payload.splitlines() if line]
    except msgspec.DecodeError:
        log.error("attempts_unreadable", size=len(payload))
        return []
