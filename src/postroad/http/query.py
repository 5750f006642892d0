"""Parameters of a query string, converted to the type that a route declares."""

from datetime import datetime
from functools import cache
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect

from postroad.kernel import json
from postroad.kernel.errors import InvalidParameter


def parse_query(text: bytes, into: type[msgspec.Struct], *, has_bearer: bool = False) -> msgspec.Struct:
    """`has_bearer`: the query may have a credential. Raises InvalidParameter."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=bool(text), max_num_fields=64)
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidParameter("the query string is malformed") from exc
    if has_bearer:  # the credential, which authentication has read
        pairs = [(name, value) for name, value in pairs if name != "bearer"]
    names = [name for name, _ in pairs]
    lists = _list_parameters(into)
    repeated = next((name for name in names if name not in lists and names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidParameter(f"the query parameter {repeated[:64]!r} is given more than once")
    several = {name: [value for other, value in pairs if other == name] for name in lists.intersection(names)}
    try:
        found = msgspec.convert({**dict(pairs), **several}, into, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidParameter(f"query parameter: {json.described(str(exc), into)}") from exc
    fields = dict(zip(found.__struct_encode_fields__, found.__struct_fields__, strict=True))
    for name, given in pairs:  # msgspec converts the text null to None, and a number to a time
        value = getattr(found, fields[name]) if name in fields else given
        if value is None or (isinstance(value, datetime) and ":" not in given):
            raise InvalidParameter(f"query parameter: {given[:64]!r} is not a valid value of {name!r}")
    if "from" in names and "to" in names:
        _check_range(getattr(found, fields["from"]), getattr(found, fields["to"]))
    return found


@cache
def _list_parameters(into: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that may be given several times."""
    kinds = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)
    described = msgspec.inspect.type_info(into)
    fields = described.fields if isinstance(described, msgspec.inspect.StructType) else ()
    return frozenset(field.encode_name for field in fields if isinstance(_unannotated(field.type), kinds))


def _unannotated(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    return _unannotated(kind.type) if isinstance(kind, msgspec.inspect.Metadata) else kind


def _check_range(since: object, until: object) -> None:
    if isinstance(since, datetime) and isinstance(until, datetime) and since > until:
        raise InvalidParameter("query parameter: `from` must not be after `to`")
