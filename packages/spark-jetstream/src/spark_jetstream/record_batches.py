"""Conversion of messages to Arrow record batches, column by column."""

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from spark_jetstream.protocol import MessageColumns, parse_headers

SCHEMA = "stream string, subject string, sequence long, timestamp timestamp, headers map<string,string>, data binary"
ARROW_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("subject", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
    ]
)


def record_batch(stream: str, columns: MessageColumns) -> pa.RecordBatch:
    """Convert messages. Invalid UTF-8 in subjects and headers is replaced, never dropped."""
    arrays = [
        pa.repeat(pa.scalar(stream), len(columns)),
        _strings(columns.subjects),
        _integers(columns.sequences),
        _timestamps(columns.times),
        _header_maps(columns.headers),
        pa.array(columns.data, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _strings(values: Sequence[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _integers(values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.string()).cast(pa.int64())


def _timestamps(values: Sequence[bytes]) -> pa.Array:
    """Convert nanoseconds since 1970 (consumers) or RFC 3339 (direct gets), truncated to microseconds."""
    if values and values[0].isdigit():
        return pc.divide(_integers(values), 1000).cast(pa.timestamp("us", tz="UTC"))
    parsed = pa.array(values, pa.string()).cast(pa.timestamp("ns", tz="UTC"))
    return parsed.cast(pa.timestamp("us", tz="UTC"), safe=False)


def _header_maps(sections: Sequence[bytes | None]) -> pa.Array:
    """Convert header sections to maps. The values of a repeated name are joined by commas, since map keys are unique."""
    if not any(sections):
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (len(sections) + 1), pa.int32()), empty, empty)
    offsets = [0]
    names: list[bytes] = []
    values: list[bytes] = []
    for section in sections:
        if section is not None:
            pairs = parse_headers(section)
            if len(pairs) > 1:
                pairs = _join_repeated(pairs)
            for name, value in pairs:
                names.append(name)
                values.append(value)
        offsets.append(len(names))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), _strings(names), _strings(values))


def _join_repeated(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    joined: dict[bytes, bytes] = {}
    for name, value in pairs:
        joined[name] = joined[name] + b"," + value if name in joined else value
    return list(joined.items())
