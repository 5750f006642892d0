"""Program of the validator process: reads a schema and a payload from standard input, writes the violations to standard output.

It imports nothing of Postroad and has none of its secrets. Each compilation and each validation has a budget of processor time:
the kernel ends the process with SIGPROF when it is spent, in native code too. The process ends when its parent closes the pipe.
"""

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn, TypeVar

import jsonschema_rs
import msgspec

BUDGET_SECONDS = 0.05
MEMORY_BYTES_MAX = 512 * 1024 * 1024
ERRORS_MAX = 10
READY = b"\n"

_LISTED_BYTES_MAX = 8 * 1024  # the library builds all errors of a payload before it returns one
_COMPILED_MAX = 32
_NICENESS = 5
_DETAIL_CHARS_MAX = 500
_NESTED: Any = {"a": {"a": [{"a": 1}]}}
_PROBES: tuple[Any, ...] = (None, True, 0, 1.5, "", "a", [], {}, [1], ["a", "b"], {"a": 1}, [_NESTED, _NESTED], _NESTED)

T = TypeVar("T")


class Request(msgspec.Struct, array_like=True):
    """A schema and a payload, both as JSON. Without a payload the schema is probed with small values."""

    schema: bytes
    payload: bytes | None


class Violation(msgspec.Struct, array_like=True):
    path: list[str | int]
    detail: str


class Reply(msgspec.Struct, array_like=True):
    """The violations of the payload, or the reason why the schema is invalid."""

    violations: list[Violation]
    schema_error: str | None = None


def compile_schema(schema: Any, **regex_limits: int) -> Any:
    """Compile a schema without fetching references. Raises several types, which all mean that the schema is invalid."""
    options = jsonschema_rs.RegexOptions(**regex_limits)
    return jsonschema_rs.validator_for(schema, retriever=_refuse_reference, pattern_options=options)


def _refuse_reference(uri: str) -> NoReturn:
    raise ValueError(f"{uri[:200]} is an external reference; a schema must contain all its definitions")


def write_frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def frame_length(header: bytes) -> int:
    length: int = struct.unpack(">I", header)[0]
    return length


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent closes the pipe when it has drained
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    decoder, compiled = msgspec.msgpack.Decoder(Request), dict[bytes, Any]()
    _write(target, READY)
    while header := source.read(4):
        request = decoder.decode(source.read(frame_length(header)))
        _write(target, write_frame(msgspec.msgpack.encode(_reply(request, compiled))))


def _reply(request: Request, compiled: dict[bytes, Any]) -> Reply:
    validator = compiled.get(request.schema)
    if validator is None:
        if len(compiled) >= _COMPILED_MAX:
            compiled.clear()
        try:
            validator = _within_budget(lambda: compile_schema(msgspec.json.decode(request.schema)))
        except Exception as exc:  # the library raises several types
            return Reply([], str(exc)[:_DETAIL_CHARS_MAX])
        compiled[request.schema] = validator
    payload = request.payload
    if payload is None:
        _within_budget(lambda: [list(validator.iter_errors(value)) for value in _PROBES])
        return Reply([])
    return Reply(_within_budget(lambda: _violations(validator, payload)))


def _within_budget(work: Callable[[], T]) -> T:
    """The kernel ends the process if the work needs more processor time."""
    signal.setitimer(signal.ITIMER_PROF, BUDGET_SECONDS)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _violations(validator: Any, payload: bytes) -> list[Violation]:
    """The first violations of a small payload, the first one of a large payload."""
    try:
        value = msgspec.json.decode(payload)
        if len(payload) <= _LISTED_BYTES_MAX:
            return [_violation(error) for _, error in zip(range(ERRORS_MAX), validator.iter_errors(value), strict=False)]
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [_violation(error)]
    except (ValueError, RecursionError) as exc:  # a number out of range, or nested too deeply for the library
        return [Violation([], f"cannot be validated: {exc}"[:_DETAIL_CHARS_MAX])]
    return []


def _violation(error: Any) -> Violation:
    return Violation(list(error.instance_path), error.message[:_DETAIL_CHARS_MAX])


def _write(target: BinaryIO, data: bytes) -> None:
    target.write(data)
    target.flush()


if __name__ == "__main__":
    main()
