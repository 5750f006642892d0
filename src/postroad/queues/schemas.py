"""JSON Schemas of queues, compiled once. Nothing is ever fetched: a schema stands for itself."""

from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from postroad.kernel.errors import SchemaMismatch
from postroad.kernel.json import invalid_field
from postroad.queues.rules import NewMessage, QueueRecord

_SCHEMA_BYTES_MAX = 64 * 1024
_ERRORS_MAX = 10
_REMEMBERED_MAX = 1000


def check_schema(schema: dict[str, Any]) -> None:
    """Raises BodyInvalid if it is too large, or no JSON Schema that stands for itself."""
    if len(msgspec.json.encode(schema)) > _SCHEMA_BYTES_MAX:
        raise invalid_field("$.schema", f"is over {_SCHEMA_BYTES_MAX} bytes")
    try:
        _compiled(schema)
    except Exception as exc:  # the library has several kinds; all of them mean: not usable
        raise invalid_field("$.schema", f"is not a JSON Schema that can be used: {str(exc)[:200]}") from exc


class Schemas:
    """Validators by queue; a changed queue's is compiled anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[dict[str, Any], Any]] = {}

    def check(self, record: QueueRecord, message: NewMessage, path: str = "$") -> None:
        """Raises SchemaMismatch with the paths of what does not fit."""
        schema = record.settings.schema
        if schema is None:
            return
        known = self._known.get(record.stream)
        if known is None or known[0] is not schema:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[record.stream] = (schema, _compiled(schema))
        try:
            payload = msgspec.json.decode(message.payload)
        except msgspec.DecodeError as exc:
            raise SchemaMismatch(f"{exc} (at {path}.payload)") from exc
        faults = []
        for fault in known[1].iter_errors(payload):
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.instance_path)
            faults.append({"path": f"{path}.payload{where}", "detail": fault.message[:500]})
            if len(faults) == _ERRORS_MAX:
                break
        if faults:
            raise SchemaMismatch(f"{faults[0]['detail']} (at {faults[0]['path']})", extra={"errors": faults})


def _compiled(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(schema, retriever=_fetch_nothing, pattern_options=jsonschema_rs.RegexOptions())


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri[:200]} is elsewhere; a queue's schema must stand for itself")
