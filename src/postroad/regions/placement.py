"""Placement of streams: chosen when a resource is created or changed, shown in its status, moved as a task."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from postroad.api.placement import MoveRequest, Placement, Replica
from postroad.api.tasks import Progress
from postroad.jetstream.cluster_info import StreamCluster, stream_cluster
from postroad.jetstream.connection import Connection
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.names import bucket_store, queue_stream, topic_stream
from postroad.kernel.regions import AUTO
from postroad.regions.nodes import NodeDirectory
from postroad.regions.rules import Map, Node, check_replicas, placement_tags
from postroad.tasks.service import TaskContext, Tasks

MOVE_PLACEMENT = "move-placement"
_POLL_SECONDS = 0.5

log = structlog.get_logger("postroad.regions")


class PlacementSettings(Protocol):
    """The settings of a resource that has a stream."""

    @property
    def geo(self) -> str | None: ...
    @property
    def replicas(self) -> int | None: ...


class PlacedRecord(Protocol):
    """The record of a resource that has a stream."""

    @property
    def settings(self) -> PlacementSettings: ...
    @property
    def placement(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True, slots=True)
class ChosenPlacement:
    """Where a stream is to be kept: the tags of its servers (none: any), and the number of copies."""

    tags: tuple[str, ...]
    replicas: int


def tags_of(record: PlacedRecord) -> tuple[str, ...]:
    """The tags that the stream is placed by. In records of earlier versions `geo` is a tag."""
    if record.placement is not None:
        return record.placement
    geo = record.settings.geo
    return () if geo is None or geo == AUTO else (geo,)


def stream_of(kind: str, tenant: str, name: str) -> str:
    """The JetStream stream of a queue, topic or bucket."""
    if kind == "bucket":
        return f"KV_{bucket_store(tenant, name)}"
    return queue_stream(tenant, name) if kind == "queue" else topic_stream(tenant, name)


class Placements:
    """`replicas` is the number of copies of a resource that does not ask for one."""

    def __init__(self, connection: Connection, nodes: NodeDirectory, regions: Map, tasks: Tasks, *, replicas: int) -> None:
        self._connection, self._nodes, self._tasks, self._replicas = connection, nodes, tasks, replicas
        self.regions = regions

    async def choose(self, settings: PlacementSettings, known: PlacedRecord | None = None) -> ChosenPlacement:
        """The placement for these settings; that of `known`, the present record, if it was made for the same ones.

        A single server keeps one copy, whatever was asked for. Raises BodyInvalid for an unknown `geo`, and if there are too few
        servers; EngineUnavailable if that seems to be for a while only.
        """
        replicas = self.kept_replicas(settings)
        if known is not None and (known.settings.geo, known.settings.replicas) == (settings.geo, settings.replicas):
            return ChosenPlacement(tags_of(known), replicas)
        is_placed = settings.geo not in (None, AUTO)
        is_asked = is_placed or self.regions.own_geo is not None or settings.replicas is not None
        nodes = await self._nodes.fresh() if is_asked and (is_placed or self._connection.is_clustered) else []
        tags = placement_tags(self.regions, nodes, settings.geo, replicas)
        if not is_placed and settings.replicas is not None:
            check_replicas(self.regions, nodes, replicas)
        return ChosenPlacement(tags, replicas)

    def kept_replicas(self, settings: PlacementSettings) -> int:
        """The copies that the engine can keep: a single server keeps one."""
        return (settings.replicas or self._replicas) if self._connection.is_clustered else 1

    def options(self, tags: tuple[str, ...], replicas: int) -> dict[str, object]:
        """The options of the stream."""
        placement = {"placement": {"tags": list(tags)}} if tags and self._connection.is_clustered else {}
        return {"num_replicas": replicas, **placement}

    async def status(self, stream: str) -> Placement | None:
        """Where the stream is; None if it does not exist. Raises EngineUnavailable."""
        cluster = await stream_cluster(self._connection, stream)
        if cluster is None:
            return None
        return placement_of(self.regions, {node.name: node for node in await self._nodes.known()}, cluster)

    async def start_move(self, context: RequestContext, kind: str, name: str, settings: PlacementSettings, replicas: int) -> None:
        """Follow the move of a stream whose placement was changed, as a task."""
        wanted = MoveRequest(geo=settings.geo, replicas=replicas)
        with contextlib.suppress(PreconditionFailed):  # a task follows it already, or too many are active: it moves all the same
            await self._tasks.start(context, MOVE_PLACEMENT, kind, name, wanted, replicas)

    async def follow(self, task: TaskContext) -> None:
        """The handler of the task: save the progress until all copies are on the new servers."""
        record = task.record
        stream = stream_of(record.target_kind, record.tenant, record.target)
        while True:
            cluster = await stream_cluster(self._connection, stream)
            if cluster is None:
                return
            if cluster.desired is None:
                total = len(cluster.nodes)
                await task.save(total, Progress(total=total, scanned=total, matched=total, moved=total))
                return
            total, moved = len(cluster.moving_to), cluster.moved
            await task.save(moved, Progress(total=total, scanned=total, matched=total, moved=moved))
            await task.sleep(_POLL_SECONDS)


def placement_of(regions: Map, nodes: Mapping[str, Node], cluster: StreamCluster) -> Placement:
    """As the API shows it. A single server does not name itself: the only known node is the leader."""

    def region(name: str) -> str | None:
        entry = regions.region_of(nodes[name]) if name in nodes else None
        return None if entry is None else entry.name

    leader = cluster.leader or (next(iter(nodes)) if len(nodes) == 1 else "")
    replicas = [
        Replica(
            node=peer.name,
            region=region(peer.name),
            is_leader=False,
            is_current=peer.current,
            is_offline=peer.offline,
            lag=peer.lag,
        )
        for peer in cluster.replicas
    ]
    if leader:
        replicas.insert(0, Replica(node=leader, region=region(leader), is_leader=True, is_current=True, is_offline=False))
    return Placement(
        leader=leader or None, region=region(leader) if leader else None, replicas=replicas, moving_to=cluster.moving_to
    )
