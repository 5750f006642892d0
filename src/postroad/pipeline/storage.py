"""Files of the lake: in a local folder, or in an object store. Used by the driver and by Spark's tasks."""

import contextlib
import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyarrow import fs

# Columns whose values hardly repeat: Parquet dictionaries would be wasted work.
_UNIQUE_COLUMNS = frozenset(
    (
        "event_id",
        "job_id",
        "message_id",
        "request_id",
        "command_id",
        "payload",
        "payload_hash",
        "raw",
        "data",
        "sequence",
        "time",
        "timestamp",
    )
)


@dataclass(frozen=True, slots=True)
class Storage:
    """`root` is an absolute folder, or a URL such as `s3://bucket/lake`. Names are relative to it, with slashes.

    The credentials of an object store come from the environment (`AWS_…`), on every machine. `endpoint` is that of an S3 server
    other than Amazon's: `https://minio:9000`.
    """

    root: str
    endpoint: str | None = None

    @property
    def is_local(self) -> bool:
        return "://" not in self.root

    @property
    def delta_options(self) -> dict[str, str]:
        """For delta-rs."""
        if self.endpoint is None:
            return {}
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": str(self.endpoint.startswith("http://")).lower()}

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write_table(self, name: str, table: pa.Table) -> int:
        """Write a new Parquet file durably. Returns its size."""
        parent = self.url(name).rsplit("/", 1)[0]
        if not self.is_local:
            filesystem, base = _filesystem(self)
            with filesystem.open_output_stream(f"{base}/{name}") as file:
                _write_parquet(table, file)
            return int(filesystem.get_file_info(f"{base}/{name}").size)
        Path(parent).mkdir(parents=True, exist_ok=True)
        with Path(self.url(name)).open("xb") as file:
            _write_parquet(table, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        sync(Path(parent))
        sync(Path(parent).parent)
        return size

    def read_table(self, name: str, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        """The table with these columns of the schema; those that the file lacks are null."""
        filesystem, base = _filesystem(self)
        wanted = pa.schema([schema.field(column) for column in columns]) if columns is not None else schema
        with filesystem.open_input_file(f"{base}/{name}") as source:
            file = pq.ParquetFile(source)
            names = set(file.schema_arrow.names)
            found = file.read([field.name for field in wanted if field.name in names], use_threads=False)
        return as_schema(found, wanted)

    def read_text(self, name: str) -> str | None:
        filesystem, base = _filesystem(self)
        try:
            with filesystem.open_input_stream(f"{base}/{name}") as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Names in the folder, in order; none if it does not exist."""
        filesystem, base = _filesystem(self)
        selector = fs.FileSelector(f"{base}/{folder}", allow_not_found=True)
        return sorted(one.base_name for one in filesystem.get_file_info(selector) if not one.base_name.startswith("."))

    def files_below(self, folder: str) -> list[str]:
        """Names of the data files below the folder."""
        filesystem, base = _filesystem(self)
        found = filesystem.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True))
        paths = [one.path for one in found if one.is_file and not one.base_name.startswith(("_", "."))]
        return sorted(path.removeprefix(base).lstrip("/") for path in paths)

    def remove_folder(self, folder: str) -> None:
        filesystem, base = _filesystem(self)
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_dir(f"{base}/{folder}")

    def remove_file(self, name: str) -> None:
        filesystem, base = _filesystem(self)
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_file(f"{base}/{name}")


def storage_at(root: str, endpoint: str | None = None) -> Storage:
    """A local folder is created. `s3a://`, Hadoop's name for S3, is accepted."""
    if root.startswith("s3a://"):
        root = "s3://" + root.removeprefix("s3a://")
    if "://" in root and not root.startswith("file://"):
        return Storage(root.rstrip("/"), endpoint)
    folder = Path(root.removeprefix("file://")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return Storage(str(folder))


def new_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}.parquet"


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly these columns; those that it lacks are null."""
    names = set(table.column_names)
    columns = [
        table.column(field.name).cast(field.type, safe=False) if field.name in names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    with contextlib.suppress(FileNotFoundError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _write_parquet(table: pa.Table, file: Any) -> None:
    repeated = [name for name in table.column_names if name not in _UNIQUE_COLUMNS and _is_text(table.schema.field(name).type)]
    pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=repeated or False)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


@cache
def _filesystem(storage: Storage) -> tuple[Any, str]:
    root = storage.root
    if storage.is_local:
        return fs.LocalFileSystem(), root
    if root.startswith("s3://"):
        scheme, _, host = (storage.endpoint or "").partition("://")
        endpoint = {"endpoint_override": host, "scheme": scheme} if storage.endpoint else {}
        return fs.S3FileSystem(**endpoint), root.removeprefix("s3://")
    filesystem, base = fs.FileSystem.from_uri(root)
    return filesystem, base.rstrip("/")
