"""Streams and consumers as they should be: created if missing, changed if different, and compared with what was asked.

A server that is too old drops options it does not know without a word. So the configuration it echoes is compared with the
request after every create and update.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from postroad.jetstream.api_errors import CONSUMER_NOT_FOUND, STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiFailure, translate
from postroad.jetstream.connection import Connection
from postroad.kernel.errors import EngineRefused


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


@dataclass(frozen=True, slots=True)
class StreamInfo:
    config: Mapping[str, Any]
    state: StreamState

    @property
    def metadata(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.config.get("metadata") or {}
        return found


class _InfoAnswer(msgspec.Struct):
    config: dict[str, Any]
    state: StreamState


_decode_info = msgspec.json.Decoder(_InfoAnswer).decode


def _info(answer: bytes) -> StreamInfo:
    decoded = _decode_info(answer)
    return StreamInfo(decoded.config, decoded.state)


async def ensure_stream(connection: Connection, spec: StreamSpec) -> StreamInfo:
    """Make the stream be as `spec` says. Raises EngineRefused when the server did not take an option."""
    config = spec.as_config()
    try:
        info = _info(await connection.api(f"STREAM.CREATE.{spec.name}", config))
    except ApiFailure as failure:
        if failure.error.err_code != STREAM_NAME_IN_USE:
            raise translate(failure.error) from failure
        info = _info(await connection.call(f"STREAM.UPDATE.{spec.name}", config))
    _compare(spec.name, config, info.config)
    return info


async def ensure_consumer(connection: Connection, stream: str, name: str, config: Mapping[str, object]) -> None:
    """A durable pull consumer, made or changed to be as `config` says."""
    wanted = {
        "durable_name": name,
        "name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        **config,
    }
    answer = await connection.call(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": wanted, "action": ""})
    _compare(f"{stream}/{name}", wanted, msgspec.json.decode(answer)["config"])


def _compare(name: str, wanted: Mapping[str, object], got: Mapping[str, Any]) -> None:
    for option, value in wanted.items():
        echoed = got.get(option)
        if option == "metadata":  # the server adds its own entries
            echoed = {key: (echoed or {}).get(key) for key in wanted["metadata"]}  # type: ignore[attr-defined]
        if echoed != value and not (not value and not echoed):
            raise EngineRefused(
                f"the engine made {name} with {option}={echoed!r} where {value!r} was asked: is nats-server too old?"
            )


async def stream_info(connection: Connection, name: str) -> StreamInfo | None:
    """None if there is no such stream."""
    try:
        return _info(await connection.api(f"STREAM.INFO.{name}"))
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return None
        raise translate(failure.error) from failure


class _Named(msgspec.Struct):
    name: str


class _Listed(msgspec.Struct):
    config: _Named
    state: StreamState


class _ListAnswer(msgspec.Struct):
    streams: list[_Listed] | None = None
    total: int = 0


_decode_list = msgspec.json.Decoder(_ListAnswer).decode


async def stream_states(connection: Connection) -> dict[str, StreamState]:
    """Of all streams that there are, some hundreds with each request."""
    found: dict[str, StreamState] = {}
    offset = 0
    while True:
        answer = _decode_list(await connection.call("STREAM.LIST", {"offset": offset}))
        page = answer.streams or []
        found |= {one.config.name: one.state for one in page}
        offset += len(page)
        if not page or offset >= answer.total:
            return found


class ConsumerState(msgspec.Struct, frozen=True):
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0


_decode_consumer = msgspec.json.Decoder(ConsumerState).decode


async def consumer_state(connection: Connection, stream: str, name: str) -> ConsumerState | None:
    try:
        return _decode_consumer(await connection.api(f"CONSUMER.INFO.{stream}.{name}"))
    except ApiFailure as failure:
        if failure.error.err_code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
            return None
        raise translate(failure.error) from failure


async def delete_stream(connection: Connection, name: str) -> bool:
    """False if there was none."""
    try:
        await connection.api(f"STREAM.DELETE.{name}")
        return True
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return False
        raise translate(failure.error) from failure


async def pause_consumer(connection: Connection, stream: str, consumer: str, *, is_paused: bool) -> None:
    """While it is paused the engine delivers nothing from it; what is settled meanwhile is settled."""
    until = "9999-12-31T00:00:00Z" if is_paused else "0001-01-01T00:00:00Z"
    await connection.call(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until})


async def purge_stream(connection: Connection, name: str, subject: str | None = None, *, before: int | None = None) -> int:
    """How many messages were removed, of one subject or pattern if it is named, `before` a sequence if it is given; none if there
    is no such stream."""
    body = {**({"filter": subject} if subject else {}), **({"seq": before} if before else {})}
    try:
        answer = await connection.api(f"STREAM.PURGE.{name}", body, timeout=30)
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return 0
        raise translate(failure.error) from failure
    return int(msgspec.json.decode(answer)["purged"])


class _SubjectsState(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _SubjectsAnswer(msgspec.Struct):
    state: _SubjectsState
    total: int = 0


_decode_subjects = msgspec.json.Decoder(_SubjectsAnswer).decode
_BEYOND = 2**31  # of all subjects: what comes is how many there are, and none of them


async def subjects_of(connection: Connection, name: str, pattern: str) -> list[str]:
    """The subjects of a stream that fit a pattern and have messages."""
    found: list[str] = []
    while True:
        answer = _decode_subjects(
            await connection.call(f"STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": len(found)})
        )
        page = list(answer.state.subjects or ())
        found += page
        if not page or len(found) >= answer.total:
            return found


async def count_subjects(connection: Connection, name: str, pattern: str) -> int:
    """How many subjects of a stream fit a pattern and have messages, without their names; 0 if there is no such stream."""
    try:
        answer = await connection.api(f"STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": _BEYOND})
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return 0
        raise translate(failure.error) from failure
    return _decode_subjects(answer).total
