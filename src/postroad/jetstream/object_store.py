"""Large values by name, in the layout of the NATS object store (`nats object` can list and read them).

An object is a sequence of chunks under a subject of its own, then a message that describes it; until that is stored, the object
is not found. A link is a description without chunks that names another object.
"""

import asyncio
import base64
import contextlib
import hashlib

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream, subjects_of
from postroad.jetstream.protocol import header_lines
from postroad.kernel.ids import new_id

_CHUNK_BYTES = 128 * 1024
_CHUNKS_AT_ONCE = 32
_PAGE_CHUNKS = 32
_LAG_SECONDS = 0.05
_ABANDONED_MS = 600_000  # chunks of this age without a description belong to a write that was interrupted


class ObjectDamaged(Exception):
    """The chunks are not those that the description names."""


class _Link(msgspec.Struct, frozen=True):
    bucket: str
    name: str


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    link: _Link | None = None
    max_chunk_size: int = 0


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an object, with the field names of NATS. `mtime` is set by readers, from the time of its message."""

    name: str
    bucket: str
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    mtime: str = "0001-01-01T00:00:00Z"
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    options: _Options = _Options()
    deleted: bool = False

    @property
    def target(self) -> str | None:
        """The object that a link names."""
        return None if self.options.link is None else self.options.link.name


_decode = msgspec.json.Decoder(ObjectInfo).decode


def object_store_stream(bucket: str, replicas: int) -> StreamSpec:
    options = {"discard": "new", "allow_rollup_hdrs": True, "allow_atomic": True, "num_replicas": replicas}
    return StreamSpec(f"OBJ_{bucket}", (f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"), options)


class ObjectStore:
    """One bucket of objects. Its stream is `object_store_stream`."""

    def __init__(self, connection: Connection, bucket: str, committers: Committers) -> None:
        self.bucket, self.stream = bucket, f"OBJ_{bucket}"
        self._connection, self._committer = connection, committers.of(self.stream)

    async def put(self, name: str, content: bytes, metadata: dict[str, str]) -> ObjectInfo:
        """Store an object under a name that is not in use."""
        nuid = new_id()
        starts = range(0, len(content), _CHUNK_BYTES)
        pending = [PendingMessage(self._chunks(nuid), content[at : at + _CHUNK_BYTES], new_id()) for at in starts]
        for first in range(0, len(pending), _CHUNKS_AT_ONCE):
            await asyncio.gather(*(self._committer.append(one) for one in pending[first : first + _CHUNKS_AT_ONCE]))
        info = ObjectInfo(
            name=name,
            bucket=self.bucket,
            nuid=nuid,
            size=len(content),
            chunks=len(pending),
            digest=_digest(content),
            metadata=metadata,
            options=_Options(max_chunk_size=_CHUNK_BYTES),
        )
        await self._describe(info, None)
        return info

    async def link(self, name: str, target: str, metadata: dict[str, str], revision: int) -> int:
        """Make `name` a link to an object. Returns its revision. Raises Conflict if it has not this `revision` (0: none)."""
        options = _Options(link=_Link(self.bucket, target))
        info = ObjectInfo(name=name, bucket=self.bucket, nuid=new_id(), metadata=metadata, options=options)
        return await self._describe(info, revision)

    async def _describe(self, info: ObjectInfo, revision: int | None) -> int:
        headers = [("Nats-Rollup", "sub")]
        if revision is not None:
            headers.append(("Nats-Expected-Last-Subject-Sequence", str(revision)))
        message = PendingMessage(
            self._description(info.name),
            msgspec.json.encode(info),
            new_id(),
            header_lines(headers),
            is_conditional=revision is not None,
        )
        return (await self._committer.append(message)).sequence

    async def find(self, name: str) -> tuple[ObjectInfo | None, int]:
        """The description of an object and its revision; None if there is none or it cannot be decoded."""
        entry = await stream_reader.last(self._connection, self.stream, self._description(name))
        return (None, 0) if entry is None else (_readable(entry.payload), entry.sequence)

    async def read(self, info: ObjectInfo) -> bytes:
        """The content. Raises ObjectDamaged, EngineUnavailable."""
        chunks: list[bytes] = []
        position, deadline = 1, asyncio.get_running_loop().time() + self._connection.settings.request_timeout
        while len(chunks) < info.chunks:
            page = await stream_reader.read(self._connection, self.stream, self._chunks(info.nuid), position, _PAGE_CHUNKS)
            chunks += [entry.payload for entry in page.entries]
            position = page.next_sequence
            if not page.entries and not self._connection.settings.has_replicas:
                break
            if not page.entries:  # the replica that answered may lag
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(_LAG_SECONDS)
        content = b"".join(chunks)
        if len(content) != info.size or _digest(content) != info.digest:
            raise ObjectDamaged(f"{info.name}: {len(content)} of {info.size} bytes, or another digest")
        return content

    async def list(self) -> list[ObjectInfo]:
        """All descriptions that can be decoded, links included, oldest first. Raises EngineUnavailable."""
        found: list[ObjectInfo] = []
        position = 1
        while True:
            page = await stream_reader.read(self._connection, self.stream, f"$O.{self.bucket}.M.>", position)
            found += [info for entry in page.entries if (info := _readable(entry.payload)) is not None and not info.deleted]
            position = page.next_sequence
            if page.is_end:
                return found

    async def delete(self, info: ObjectInfo) -> None:
        """Remove an object. After an interruption its description is still there, so it can be repeated."""
        with contextlib.suppress(ObjectDamaged):
            await purge_stream(self._connection, self.stream, self._chunks(info.nuid))
        await purge_stream(self._connection, self.stream, self._description(info.name))

    async def delete_abandoned(self, now_ms: int) -> int:
        """Remove the chunks of writes that were interrupted before their description was stored. Returns how many writes."""
        used = {f"$O.{self.bucket}.C.{info.nuid}" for info in await self.list()}
        count = 0
        for subject in await subjects_of(self._connection, self.stream, f"$O.{self.bucket}.C.>"):
            if subject in used:
                continue
            newest = await stream_reader.last(self._connection, self.stream, subject)
            if newest is not None and now_ms - newest.at_ms > _ABANDONED_MS:
                await purge_stream(self._connection, self.stream, subject)
                count += 1
        return count

    def _chunks(self, nuid: str) -> str:
        if not nuid or any(character in " .*>\t\r\n" for character in nuid):
            raise ObjectDamaged("its description has an invalid id")
        return f"$O.{self.bucket}.C.{nuid}"

    def _description(self, name: str) -> str:
        return f"$O.{self.bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _readable(payload: bytes) -> ObjectInfo | None:
    try:
        return _decode(payload)
    except msgspec.DecodeError:
        return None


def _digest(content: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
