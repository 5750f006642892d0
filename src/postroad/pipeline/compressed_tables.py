"""Arrow tables as compressed bytes: rollups in the results of tasks, which the driver receives from all machines of a cluster."""

import pyarrow as pa  # type: ignore[import-untyped]

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def compress(table: pa.Table) -> bytes:
    """Texts, which repeat in rollups, are stored once each."""
    columns = [column.dictionary_encode() if pa.types.is_string(column.type) else column for column in table.columns]
    encoded = pa.table(columns, names=table.column_names).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, encoded.schema, options=_OPTIONS) as writer:
        writer.write_table(encoded)
    return bytes(sink.getvalue())


def decompress(content: bytes, schema: pa.Schema) -> pa.Table:
    """The table, which has this schema."""
    return pa.ipc.open_stream(content).read_all().cast(schema)
