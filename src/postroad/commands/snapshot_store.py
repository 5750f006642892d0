"""Where snapshots of the registry are: objects with a version in their names, and a link `latest` to the one that counts.

The link is replaced by compare-and-set, after the object was written, read back and validated. So no process reads a part of
a snapshot, and of two writers one wins.
"""

from dataclasses import dataclass

from postroad.commands.snapshot_format import SnapshotHead, SnapshotRefused
from postroad.jetstream.object_store import ObjectDamaged, ObjectInfo, ObjectStore
from postroad.kernel.errors import EngineUnavailable

SNAPSHOTS_BUCKET = "SNAPSHOTS"
_OLDER_KEPT = 2


@dataclass(frozen=True, slots=True)
class Pointer:
    """What `latest` says. Every client that can write to the engine could have written it: only a sealed snapshot is trusted."""

    revision: int = 0
    target: str | None = None
    number: int = 0
    routes: int = -1
    services: int = -1
    expires_at_ms: int = 0
    kept: tuple[str, ...] = ()


class SnapshotStore:
    def __init__(self, objects: ObjectStore, path: str) -> None:
        self._objects, self._path = objects, path.strip("/")

    @property
    def latest(self) -> str:
        return f"{self._path}/latest"

    def name(self, version_id: str) -> str:
        return f"{self._path}/{version_id}.json.gz"

    async def pointer(self) -> Pointer:
        """Raises EngineUnavailable."""
        info, revision = await self._objects.find(self.latest)
        if info is None:
            return Pointer(revision)
        about = info.metadata
        return Pointer(
            revision,
            info.target,
            _number(about.get("number")),
            _number(about.get("routes"), -1),
            _number(about.get("services"), -1),
            _number(about.get("expires_at_ms")),
            tuple(about.get("kept", "").split()),
        )

    async def read(self, name: str, bytes_max: int) -> bytes:
        """The compressed snapshot. Raises SnapshotRefused."""
        try:
            info, _ = await self._objects.find(name)
            if info is None or info.deleted or info.target is not None:
                raise SnapshotRefused("missing", f"there is no {name}")
            if info.size > bytes_max:
                raise SnapshotRefused("too-large", f"{info.size} bytes; {bytes_max} is the limit")
            return await self._objects.read(info)
        except EngineUnavailable as problem:
            raise SnapshotRefused("unavailable", problem.detail) from problem
        except ObjectDamaged as problem:
            raise SnapshotRefused("malformed", str(problem)) from problem

    async def read_latest(self, bytes_max: int) -> bytes:
        """Raises SnapshotRefused."""
        try:
            pointer = await self.pointer()
        except EngineUnavailable as problem:
            raise SnapshotRefused("unavailable", problem.detail) from problem
        if pointer.target is None:
            raise SnapshotRefused("missing", "no snapshot was written yet")
        return await self.read(pointer.target, bytes_max)

    async def put(self, head: SnapshotHead, content: bytes) -> ObjectInfo:
        """The first phase: no process reads it yet."""
        return await self._objects.put(self.name(head.version_id), content, {"version_id": head.version_id})

    async def publish(self, head: SnapshotHead, pointer: Pointer) -> None:
        """The second phase. Raises Conflict if another snapshot was published since `pointer` was read."""
        name = self.name(head.version_id)
        earlier = pointer.kept if pointer.target in pointer.kept else (pointer.target, *pointer.kept)
        kept = [name, *(one for one in earlier if one)]
        about = {
            "version_id": head.version_id,
            "number": str(head.number),
            "routes": str(head.routes.revision),
            "services": str(head.services.revision),
            "expires_at_ms": str(head.expires_at_ms),
            "kept": " ".join(kept[: 1 + _OLDER_KEPT]),
        }
        await self._objects.link(self.latest, name, about, pointer.revision)

    async def delete(self, info: ObjectInfo) -> None:
        await self._objects.delete(info)

    async def list(self) -> list[ObjectInfo]:
        """The snapshots that are stored, oldest first."""
        found = await self._objects.list()
        return [one for one in found if one.name.startswith(f"{self._path}/") and one.target is None]

    async def prune(self, now_ms: int) -> int:
        """Delete snapshots that `latest` does not keep, unless a writer may still publish them. Returns how many."""
        pointer = await self.pointer()
        outdated = [one for one in await self.list() if one.name not in pointer.kept and self._number_of(one) <= pointer.number]
        for one in outdated:
            await self._objects.delete(one)
        return len(outdated) + await self._objects.delete_abandoned(now_ms)

    def _number_of(self, info: ObjectInfo) -> int:
        return _number(info.name.removeprefix(f"{self._path}/").partition("-")[0])


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else default
