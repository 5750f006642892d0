"""Management of streams and consumers: create or update, inspect, purge, delete. Changes raise Maintenance while writes are held.

A server that is too old silently drops options it does not know. So the configuration it returns is compared with the request
after every create and update.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from postroad.jetstream.api_errors import (
    CONSUMER_NOT_FOUND,
    NO_SUCH_MESSAGE,
    PLACEMENT_REFUSED_FOR_NOW,
    STREAM_MOVE_AND_SCALE,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    ApiFailure,
    translate,
)
from postroad.jetstream.connection import Connection
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import OptionIgnored

_PLACEMENT_SECONDS = 8.0
_PLACEMENT_BACKOFF = Backoff(first_seconds=0.1, max_seconds=1.0)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    name: str
    subjects: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=dict)

    def as_config(self) -> dict[str, object]:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "allow_direct": True,
            "num_replicas": 1,
            **self.options,
        }


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_ts: str = ""
    last_ts: str = ""
    num_subjects: int = 0


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """`created` is the time of the stream's creation as the server writes it."""

    config: Mapping[str, Any]
    state: StreamState
    created: str = ""

    @property
    def metadata(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.config.get("metadata") or {}
        return found


class _InfoResponse(msgspec.Struct):
    config: dict[str, Any]
    state: StreamState
    created: str = ""


_decode_info = msgspec.json.Decoder(_InfoResponse).decode


def _info(response: bytes) -> StreamInfo:
    decoded = _decode_info(response)
    return StreamInfo(decoded.config, decoded.state, decoded.created)


async def ensure_stream(connection: Connection, spec: StreamSpec, *, timeout: float | None = None) -> StreamInfo:
    """Create the stream, or update it to `spec`. Raises OptionIgnored, EngineRefused.

    `timeout`: for the start of a process, when a cluster with long distances may still be electing leaders.
    """
    config = spec.as_config()
    try:
        with connection.writes.writing(spec.name):
            info = await _create_or_update(connection, spec.name, config, timeout)
    except ApiFailure as failure:
        raise translate(failure.error) from failure
    _compare(spec.name, config, info.config)
    await connection.store_sync.wait_filesystem()
    return info


async def _create_or_update(connection: Connection, name: str, config: Mapping[str, object], timeout: float | None) -> StreamInfo:
    """Repeats for some seconds what a cluster refuses while it forms or moves a stream. Raises ApiFailure, EngineUnavailable."""
    loop = asyncio.get_running_loop()
    attempt_timeout = None if timeout is None else connection.settings.request_timeout

    async def call(operation: str) -> bytes:
        return await connection.api(f"STREAM.{operation}.{name}", config, timeout=timeout, attempt_timeout=attempt_timeout)

    deadline, delays = loop.time() + _PLACEMENT_SECONDS, _PLACEMENT_BACKOFF.delays()
    while True:
        try:
            return _info(await call("CREATE"))
        except ApiFailure as failure:
            refusal = failure
        if refusal.error.err_code == STREAM_NAME_IN_USE:
            try:
                return _info(await call("UPDATE"))
            except ApiFailure as failure:
                refusal = failure
        if refusal.error.err_code == STREAM_MOVE_AND_SCALE:
            await _take_first_step(connection, name, config)
        delay = next(delays)
        if refusal.error.err_code not in PLACEMENT_REFUSED_FOR_NOW or loop.time() + delay > deadline:
            raise refusal
        await asyncio.sleep(delay)


async def _take_first_step(connection: Connection, name: str, config: Mapping[str, Any]) -> None:
    """A stream is not moved and scaled at once: it moves with the smaller number of copies, which fits both places."""
    present = await stream_info(connection, name)
    if present is None:
        return
    option = "placement" if present.config["num_replicas"] > config["num_replicas"] else "num_replicas"
    with contextlib.suppress(ApiFailure):  # refused while the step is being taken
        await connection.api(f"STREAM.UPDATE.{name}", {**config, option: present.config.get(option)})


async def ensure_consumer(connection: Connection, stream: str, name: str, config: Mapping[str, object]) -> None:
    """Create a durable pull consumer, or update it to `config`. Raises OptionIgnored, EngineRefused."""
    wanted = {
        "durable_name": name,
        "name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        **config,
    }
    with connection.writes.writing(stream):
        response = await connection.call(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": wanted, "action": ""}
        )
    _compare(f"{stream}/{name}", wanted, msgspec.json.decode(response)["config"])
    await connection.store_sync.wait_filesystem()


def _compare(name: str, wanted: Mapping[str, object], actual: Mapping[str, Any]) -> None:
    for option, value in wanted.items():
        found = actual.get(option)
        if option == "metadata":  # the server adds its own entries
            found = {key: (found or {}).get(key) for key in wanted["metadata"]}  # type: ignore[attr-defined]
        if found != value and (found or value):
            raise OptionIgnored(
                f"the engine configured {name} with {option}={found!r} instead of {value!r}: nats-server may be too old"
            )


async def stream_info(connection: Connection, name: str) -> StreamInfo | None:
    """None if the stream does not exist."""
    try:
        return _info(await connection.api(f"STREAM.INFO.{name}"))
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return None
        raise translate(failure.error) from failure


class _Replica(msgspec.Struct):
    current: bool = False
    offline: bool = False


class _Cluster(msgspec.Struct):
    replicas: list[_Replica] = []


class _ClusterResponse(msgspec.Struct):
    cluster: _Cluster | None = None


_decode_cluster = msgspec.json.Decoder(_ClusterResponse).decode


async def has_current_replicas(connection: Connection, stream: str) -> bool:
    """True if no replica lags behind its leader, so that a read finds every message stored before this call."""
    if not connection.settings.has_replicas:
        return True
    cluster = _decode_cluster(await connection.call(f"STREAM.INFO.{stream}")).cluster
    return cluster is None or all(replica.current and not replica.offline for replica in cluster.replicas)


class _Named(msgspec.Struct):
    name: str


class _ListedStream(msgspec.Struct):
    config: _Named
    state: StreamState


class _ListResponse(msgspec.Struct):
    streams: list[_ListedStream] | None = None
    total: int = 0


_decode_list = msgspec.json.Decoder(_ListResponse).decode


async def stream_states(connection: Connection, subject: str | None = None) -> dict[str, StreamState]:
    """The states of all streams, or of those with subjects that match, read in pages of some hundred."""
    states: dict[str, StreamState] = {}
    offset = 0
    chosen = {"subject": subject} if subject else {}
    while True:
        response = _decode_list(await connection.call("STREAM.LIST", {"offset": offset, **chosen}))
        page = response.streams or []
        states |= {one.config.name: one.state for one in page}
        offset += len(page)
        if not page or offset >= response.total:
            return states


class _AccountLimits(msgspec.Struct):
    max_storage: int = -1


class _AccountResponse(msgspec.Struct):
    storage: int = 0
    limits: _AccountLimits = msgspec.field(default_factory=_AccountLimits)


_decode_account = msgspec.json.Decoder(_AccountResponse).decode


async def account_storage(connection: Connection) -> tuple[int, int]:
    """Bytes that the account stores, replicas included, and its limit; 0 if the account has none."""
    found = _decode_account(await connection.call("INFO"))
    return found.storage, max(0, found.limits.max_storage)


class SequencePair(msgspec.Struct, frozen=True):
    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerState(msgspec.Struct, frozen=True):
    delivered: SequencePair = SequencePair()
    ack_floor: SequencePair = SequencePair()
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0


_decode_consumer = msgspec.json.Decoder(ConsumerState).decode


async def consumer_state(connection: Connection, stream: str, name: str) -> ConsumerState | None:
    """None if the stream or the consumer does not exist."""
    try:
        return _decode_consumer(await connection.api(f"CONSUMER.INFO.{stream}.{name}"))
    except ApiFailure as failure:
        if failure.error.err_code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
            return None
        raise translate(failure.error) from failure


async def delete_stream(connection: Connection, name: str) -> bool:
    """False if the stream did not exist."""
    try:
        with connection.writes.writing(name):
            await connection.api(f"STREAM.DELETE.{name}")
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return False
        raise translate(failure.error) from failure
    await connection.store_sync.wait_filesystem()
    return True


async def delete_consumer(connection: Connection, stream: str, name: str) -> bool:
    """False if the stream or the consumer did not exist."""
    try:
        with connection.writes.writing(stream):
            await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    except ApiFailure as failure:
        if failure.error.err_code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
            return False
        raise translate(failure.error) from failure
    await connection.store_sync.wait_filesystem()
    return True


async def pause_consumer(connection: Connection, stream: str, consumer: str, *, is_paused: bool) -> None:
    """A paused consumer delivers no messages; acknowledgements are accepted."""
    until = "9999-12-31T00:00:00Z" if is_paused else "0001-01-01T00:00:00Z"
    with connection.writes.writing(stream):
        await connection.call(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until})
    await connection.store_sync.wait_filesystem()


async def purge_stream(connection: Connection, name: str, subject: str | None = None, *, before: int | None = None) -> int:
    """Remove messages, optionally of one subject or pattern, or `before` a sequence. Returns their number; 0 without a stream."""
    body = {**({"filter": subject} if subject else {}), **({"seq": before} if before else {})}
    try:
        with connection.writes.writing(name):
            response = await connection.api(f"STREAM.PURGE.{name}", body, timeout=30)
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return 0
        raise translate(failure.error) from failure
    if subject:  # the server has written the removals to the stream's last block, as it does for acknowledgements
        await connection.store_sync.wait(name)
    else:
        await connection.store_sync.wait_filesystem()
    return int(msgspec.json.decode(response)["purged"])


async def delete_message(connection: Connection, stream: str, sequence: int, *, timeout: float = 5.0) -> bool:
    """False if there is no message with this sequence. Raises EngineUnavailable."""
    try:
        with connection.writes.writing(stream):
            await connection.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True}, timeout=timeout)
    except ApiFailure as failure:
        if failure.error.err_code in NO_SUCH_MESSAGE:
            return False
        raise translate(failure.error) from failure
    await connection.store_sync.wait(stream)
    return True


class _SubjectsState(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _SubjectsResponse(msgspec.Struct):
    state: _SubjectsState
    total: int = 0


_decode_subjects = msgspec.json.Decoder(_SubjectsResponse).decode
_BEYOND_LAST = 2**31  # an offset that yields the total, and no subjects


async def subjects_of(connection: Connection, name: str, pattern: str) -> list[str]:
    """The subjects of a stream that match a pattern and have messages."""
    subjects: list[str] = []
    while True:
        response = _decode_subjects(
            await connection.call(f"STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": len(subjects)})
        )
        page = list(response.state.subjects or ())
        subjects += page
        if not page or len(subjects) >= response.total:
            return subjects


async def subject_counts(connection: Connection, name: str, pattern: str) -> AsyncGenerator[dict[str, int], None]:
    """The subjects of a stream that match a pattern, with the number of their messages, in pages of many thousands."""
    offset = 0
    while True:
        response = _decode_subjects(await connection.call(f"STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": offset}))
        page = response.state.subjects or {}
        offset += len(page)
        if page:
            yield page
        if not page or offset >= response.total:
            return


async def subject_messages(connection: Connection, name: str, subject: str) -> int:
    """The number of messages of one subject, without a wildcard."""
    response = _decode_subjects(await connection.call(f"STREAM.INFO.{name}", {"subjects_filter": subject}))
    return (response.state.subjects or {}).get(subject, 0)


async def count_subjects(connection: Connection, name: str, pattern: str) -> int:
    """The number of subjects that match a pattern and have messages; 0 if the stream does not exist."""
    try:
        response = await connection.api(f"STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": _BEYOND_LAST})
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return 0
        raise translate(failure.error) from failure
    return _decode_subjects(response).total
