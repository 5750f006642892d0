"""Messages as Arrow record batches, a column at a time."""

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from spark_jetstream.protocol import Columns, header_pairs

SCHEMA = "stream string, subject string, sequence long, timestamp timestamp, headers map<string,string>, data binary"
_MAP = pa.map_(pa.string(), pa.string())
ARROW_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("subject", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", _MAP),
        ("data", pa.binary()),
    ]
)


def record_batch(stream: str, columns: Columns) -> pa.RecordBatch:
    """The messages as Spark wants them. Bytes that are no UTF-8 in a subject or header are replaced, never dropped."""
    count = len(columns)
    arrays = [
        pa.repeat(pa.scalar(stream), count),
        _strings(columns.subjects),
        _numbers(columns.sequences),
        _times(columns.times),
        _header_maps(columns.headers),
        pa.array(columns.data, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _strings(values: Sequence[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _numbers(values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.string()).cast(pa.int64())


def _times(values: Sequence[bytes]) -> pa.Array:
    """Nanoseconds since 1970 as a consumer writes them, or RFC 3339 as a direct get does; to the microsecond, cut off."""
    if values and values[0].isdigit():
        return pc.divide(_numbers(values), 1000).cast(pa.timestamp("us", tz="UTC"))
    parsed = pa.array(values, pa.string()).cast(pa.timestamp("ns", tz="UTC"))
    return parsed.cast(pa.timestamp("us", tz="UTC"), safe=False)


def _header_maps(blocks: Sequence[bytes | None]) -> pa.Array:
    """A map per message; a name that stands there twice has its values joined by commas, for a map has each key once."""
    if not any(blocks):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (len(blocks) + 1), pa.int32()), nothing, nothing)
    offsets = [0]
    names: list[bytes] = []
    values: list[bytes] = []
    for block in blocks:
        if block is not None:
            pairs = header_pairs(block)
            if len(pairs) > 1:
                pairs = _joined(pairs)
            for name, value in pairs:
                names.append(name)
                values.append(value)
        offsets.append(len(names))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), _strings(names), _strings(values))


def _joined(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found: dict[bytes, bytes] = {}
    for name, value in pairs:
        found[name] = found[name] + b"," + value if name in found else value
    return list(found.items())
