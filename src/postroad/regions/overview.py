"""The regions with their servers, and where a tenant's queues, topics and buckets are."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from postroad.api.placement import Region, RegionNode, RegionOverview
from postroad.jetstream.cluster_info import StreamCluster, stream_clusters
from postroad.jetstream.connection import Connection
from postroad.kernel.identity import Caller
from postroad.kernel.names import unescape
from postroad.kernel.regions import RegionEntry
from postroad.regions.nodes import NodeDirectory
from postroad.regions.placement import placement_of
from postroad.regions.rules import Map, Node

_KINDS = {"Q": "queue", "T": "topic", "KV": "bucket"}
_MAX_AGE_SECONDS = 5.0
_NAMED_MAX = 100


class RegionsOverview:
    def __init__(self, connection: Connection, nodes: NodeDirectory, regions: Map) -> None:
        self._connection, self._nodes, self._regions = connection, nodes, regions
        self._read_at, self._streams = float("-inf"), dict[str, StreamCluster]()
        self._lock = asyncio.Lock()

    async def of(self, caller: Caller, *, with_empty: bool) -> RegionOverview:
        """Up to some seconds old. Raises EngineUnavailable."""
        nodes = {node.name: node for node in await self._nodes.fresh()}
        mine = _streams_of(caller, await self._all_streams())
        placed = {name: placement_of(self._regions, nodes, cluster) for name, cluster in mine.items()}
        leaders = Counter(one.leader for one in placed.values() if one.leader)
        replicas = Counter(copy.node for one in placed.values() for copy in one.replicas)
        counted = {name: _counted(node, leaders[name], replicas[name]) for name, node in nodes.items()}
        entries: list[RegionEntry | None] = [*self._regions.regions, None]
        regions = [
            _region(entry, [counted[name] for name, node in nodes.items() if self._regions.region_of(node) == entry])
            for entry in entries
        ]
        return RegionOverview(
            region=self._regions.own,
            geo=self._regions.own_geo,
            regions=[one for one in regions if one.nodes or (with_empty and one.name)],
            streams=len(mine),
            without_leader=sorted(name for name, one in placed.items() if one.leader is None)[:_NAMED_MAX],
            moving=sorted(name for name, one in placed.items() if one.moving_to)[:_NAMED_MAX],
        )

    async def _all_streams(self) -> Mapping[str, StreamCluster]:
        """One list serves all callers of a process: it costs as much as there are streams."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._read_at > _MAX_AGE_SECONDS:
                self._streams = dict(await stream_clusters(self._connection))
                self._read_at = loop.time()
        return self._streams


def _streams_of(caller: Caller, streams: Mapping[str, StreamCluster]) -> dict[str, StreamCluster]:
    """Those of the resources that the caller may use, as `queue/orders`."""
    found: dict[str, StreamCluster] = {}
    for stream, cluster in streams.items():
        prefix, _, rest = stream.partition("_")
        tenant, separator, token = rest.partition("__")
        kind = _KINDS.get(prefix)
        if kind is None or not separator or tenant != caller.tenant:
            continue
        try:
            name = unescape(token)
        except ValueError:  # a stream of another NATS client
            continue
        if caller.may_use(kind, name):
            found[f"{kind}/{name}"] = cluster
    return found


def _counted(node: Node, leaders: int, replicas: int) -> RegionNode:
    return RegionNode(name=node.name, tags=list(node.tags), is_up=node.is_up, leaders=leaders, replicas=replicas)


def _region(entry: RegionEntry | None, nodes: list[RegionNode]) -> Region:
    return Region(
        name="" if entry is None else entry.name,
        geo="" if entry is None else entry.geo,
        tag="" if entry is None else entry.tag,
        nodes=nodes,
        leaders=sum(node.leaders for node in nodes),
        replicas=sum(node.replicas for node in nodes),
    )
