"""JSON Schemas of queues and topics. Payloads are validated here if that is provably quick, else in the validator process."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.queues import SchemaMismatch, SchemaTooSlow
from postroad.kernel.json import invalid_field
from postroad.queues.schema_cost import validation_cost
from postroad.queues.validator_main import Request, Violation, compile_schema
from postroad.queues.validator_process import ValidatorProcess

_SCHEMA_BYTES_MAX = 64 * 1024
_CACHED_MAX = 1000
_WORK_MAX = 1_000_000  # cost times bytes that are validated in the event loop: at most 10 ms, usually far less
_COST_MAX = _WORK_MAX // 100
_REGEX_BYTES_MAX = 16 * 1024  # of a compiled regular expression; matching takes time proportional to it and to the text


@dataclass(frozen=True, slots=True)
class _CachedSchema:
    """A schema as JSON. `validator` is None if it must not be compiled in this process."""

    schema: dict[str, Any]
    encoded: bytes
    cost: int
    validator: Any


class Schemas:
    """Compiled schemas by the stream of their queue or topic."""

    def __init__(self, process: ValidatorProcess) -> None:
        self._process = process
        self._cached: dict[str, _CachedSchema] = {}
        self._work = 0

    async def check_schema(self, tenant: str, schema: dict[str, Any]) -> None:
        """Raises BodyInvalid if the schema is too large, not a JSON Schema, has external references, or exceeds the validation
        budget for small values; Overloaded."""
        if len(msgspec.json.encode(schema)) > _SCHEMA_BYTES_MAX:
            raise invalid_field("$.schema", f"is over {_SCHEMA_BYTES_MAX} bytes")
        found = _prepare(schema)
        if found.validator is not None:
            return
        try:
            reply = await self._process.evaluate(tenant, Request(found.encoded, None))
        except SchemaTooSlow as problem:
            raise invalid_field("$.schema", f"takes too long even for small payloads: {problem.detail}; simplify it") from problem
        if reply.schema_error is not None:
            raise invalid_field("$.schema", f"is not a valid JSON Schema: {reply.schema_error[:200]}")

    async def check(self, tenant: str, stream: str, schema: dict[str, Any], payload: bytes, path: str = "$.payload") -> None:
        """Check a payload at `path` of the request. Raises SchemaMismatch with the paths of the violations, SchemaTooSlow,
        Overloaded."""
        cached = self._cached.get(stream)
        if cached is None or cached.schema is not schema:
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            cached = self._cached[stream] = _prepare(schema)
        work = cached.cost * len(payload)
        if cached.validator is not None and work <= _WORK_MAX:
            self._work += work
            if self._work > _WORK_MAX:  # other requests run between the messages of a batch
                self._work = 0
                await asyncio.sleep(0)
            if _is_valid(cached.validator, payload):
                return
        # The library lists all violations of a payload at once, which can take seconds.
        reply = await self._process.evaluate(tenant, Request(cached.encoded, payload))
        if reply.schema_error is not None:
            raise SchemaMismatch(f"the schema is not valid: {reply.schema_error}")
        if reply.violations:
            raise _mismatch(reply.violations, path)


def _prepare(schema: dict[str, Any]) -> _CachedSchema:
    encoded, cost = msgspec.json.encode(schema), validation_cost(schema)
    validator = None
    if cost <= _COST_MAX:
        try:
            validator = compile_schema(schema, size_limit=_REGEX_BYTES_MAX)
        except Exception:  # the library raises several types; the validator process repeats and reports the failure
            validator = None
    return _CachedSchema(schema, encoded, cost, validator)


def _is_valid(validator: Any, payload: bytes) -> bool:
    try:
        return bool(validator.is_valid(msgspec.json.decode(payload)))
    except (ValueError, RecursionError):  # a number out of range, or nested too deeply for the library
        return False


def _mismatch(violations: list[Violation], path: str) -> SchemaMismatch:
    errors = []
    for violation in violations:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in violation.path)
        errors.append({"path": f"{path}{where}", "detail": violation.detail})
    return SchemaMismatch(f"{errors[0]['detail']} (at {errors[0]['path']})", extra={"errors": errors})
