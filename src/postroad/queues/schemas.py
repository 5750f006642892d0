"""JSON Schemas of queues, compiled once. External references are never fetched."""

from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from postroad.api.queues import NewMessage, SchemaMismatch
from postroad.kernel.json import invalid_field
from postroad.queues.records import QueueRecord

_SCHEMA_BYTES_MAX = 64 * 1024
_ERRORS_MAX = 10
_CACHED_MAX = 1000


def check_schema(schema: dict[str, Any]) -> None:
    """Raises BodyInvalid if the schema is too large, not a JSON Schema, or has external references."""
    if len(msgspec.json.encode(schema)) > _SCHEMA_BYTES_MAX:
        raise invalid_field("$.schema", f"is over {_SCHEMA_BYTES_MAX} bytes")
    try:
        _compile(schema)
    except Exception as exc:  # the library raises several types; each means that the schema is invalid
        raise invalid_field("$.schema", f"is not a valid JSON Schema: {str(exc)[:200]}") from exc


class Schemas:
    """Compiled schemas by queue."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[dict[str, Any], Any]] = {}

    def check(self, record: QueueRecord, message: NewMessage, path: str = "$") -> None:
        """Raises SchemaMismatch with the paths of the violations."""
        schema = record.settings.schema
        if schema is None:
            return
        cached = self._cached.get(record.stream)
        if cached is None or cached[0] is not schema:
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            cached = self._cached[record.stream] = (schema, _compile(schema))
        try:
            payload = msgspec.json.decode(message.payload)
        except msgspec.DecodeError as exc:
            raise SchemaMismatch(f"{exc} (at {path}.payload)") from exc
        errors = []
        for error in cached[1].iter_errors(payload):
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            errors.append({"path": f"{path}.payload{where}", "detail": error.message[:500]})
            if len(errors) == _ERRORS_MAX:
                break
        if errors:
            raise SchemaMismatch(f"{errors[0]['detail']} (at {errors[0]['path']})", extra={"errors": errors})


def _compile(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(schema, retriever=_refuse_reference, pattern_options=jsonschema_rs.RegexOptions())


def _refuse_reference(uri: str) -> NoReturn:
    raise ValueError(f"{uri[:200]} is an external reference; a queue's schema must contain all its definitions")
