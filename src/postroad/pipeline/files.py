"""Files of the lake: in a local folder, or in a file system of Hadoop (`hdfs://`, `s3a://` …)."""

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession


class FileExists(Exception):
    """The file exists already."""


class Files(Protocol):
    """A folder of files. Names are relative to the root, with slashes."""

    def url(self, name: str) -> str:
        """The name as Spark expects it."""

    def read(self, name: str) -> str | None: ...

    def create(self, name: str, text: str) -> None:
        """Create a file atomically and durably. Raises FileExists."""

    def names(self, folder: str) -> list[str]:
        """Names in the folder, in order; none if it does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes of the data files below the folder."""

    def age_seconds(self, name: str, now: float) -> float: ...

    def make_durable(self, folder: str) -> None:
        """Flush the content of the folder to disk."""

    def remove(self, name: str) -> None: ...


def files_at(root: str, spark: SparkSession) -> Files:
    if "://" not in root:
        return LocalFiles(Path(root))
    if root.startswith("file://"):
        return LocalFiles(Path(root.removeprefix("file://")))
    return HadoopFiles(root.rstrip("/"), spark)


def _is_data(name: str) -> bool:
    """False for files that Spark adds to its data (`_SUCCESS`, checksums)."""
    last = name.rsplit("/", 1)[-1]
    return not last.startswith(("_", "."))


class LocalFiles:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.root.mkdir(parents=True, exist_ok=True)

    def url(self, name: str) -> str:
        return str(self.root / name)

    def read(self, name: str) -> str | None:
        try:
            return (self.root / name).read_text()
        except FileNotFoundError:
            return None

    def create(self, name: str, text: str) -> None:
        """Uses a link, because a rename would replace an existing file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError as exc:
                raise FileExists(name) from exc
        finally:
            temporary.unlink(missing_ok=True)
        _sync(path.parent)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one.name for one in (self.root / folder).iterdir() if not one.name.startswith("."))
        except FileNotFoundError:
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in sorted((self.root / folder).rglob("*")):
            if path.is_file() and _is_data(path.name):
                found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def age_seconds(self, name: str, now: float) -> float:
        try:
            return now - (self.root / name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def make_durable(self, folder: str) -> None:
        for path in (self.root / folder, *(self.root / folder).rglob("*")):
            _sync(path)
        _sync((self.root / folder).parent)

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class HadoopFiles:
    """Relies on the store to create objects atomically and durably."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.root = root
        jvm: Any = spark._jvm
        context: Any = spark.sparkContext._jsc
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._exists_already: Any = jvm.org.apache.hadoop.fs.FileAlreadyExistsException
        self._io: Any = jvm.org.apache.hadoop.io.IOUtils
        self._fs: Any = self._path(root).getFileSystem(context.hadoopConfiguration())

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _at(self, name: str) -> Any:
        return self._path(self.url(name))

    def read(self, name: str) -> str | None:
        if not self._fs.exists(self._at(name)):
            return None
        stream = self._fs.open(self._at(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create(self, name: str, text: str) -> None:
        if self._fs.exists(self._at(name)):
            raise FileExists(name)
        stream = self._fs.create(self._at(name), False)
        stream.write(bytearray(text.encode()))
        stream.close()

    def names(self, folder: str) -> list[str]:
        if not self._fs.exists(self._at(folder)):
            return []
        found = (one.getPath().getName() for one in self._fs.listStatus(self._at(folder)))
        return sorted(name for name in found if not name.startswith("."))

    def sizes(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        if not self._fs.exists(self._at(folder)):
            return found
        listing = self._fs.listFiles(self._at(folder), True)
        prefix = self._fs.makeQualified(self._path(self.root)).toString().rstrip("/") + "/"
        while listing.hasNext():
            one = listing.next()
            name = one.getPath().toString().removeprefix(prefix)
            if _is_data(name):
                found[name] = one.getLen()
        return found

    def age_seconds(self, name: str, now: float) -> float:
        if not self._fs.exists(self._at(name)):
            return 0.0
        changed: int = self._fs.getFileStatus(self._at(name)).getModificationTime()
        return now - changed / 1000

    def make_durable(self, folder: str) -> None:
        """Nothing to do: closed files are durable."""

    def remove(self, name: str) -> None:
        self._fs.delete(self._at(name), True)
