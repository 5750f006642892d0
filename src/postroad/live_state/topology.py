"""The topology of the installation: processes, NATS servers, and where streams have their copies."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from postroad.api.live_state import LiveProcess
from postroad.api.topology import Topology, TopologyReplica, TopologyServer, TopologyStream
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.jetstream.cluster_info import ServerInfo, StreamCluster, find_servers, stream_clusters
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, account_storage, stream_states
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import RouteRequirement

_MAX_AGE_SECONDS = 5.0
_STREAMS_MAX = 500
_NAMED_MAX = 20
_TENANT_STREAMS = ("Q_", "D_", "T_", "S_", "KV_")


class TopologyRoutes:
    """`processes` returns those that have sent a sample in the last minute."""

    def __init__(self, connection: Connection, processes: Callable[[], Awaitable[list[LiveProcess]]]) -> None:
        self._connection, self._processes = connection, processes
        self._read_at = float("-inf")
        self._read: Topology | None = None
        self._lock = asyncio.Lock()

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/api/control/topology",
                self.show_topology,
                RouteRequirement.PLATFORM,
                "Show processes, NATS servers and the placement of streams",
                "Live state",
                response=Topology,
                errors=(EngineUnavailable,),
                description="Some seconds old. Lists the installation's own streams, and those without a leader, a quorum or an "
                "up-to-date copy; others are counted. `critical` of a server: streams that need it.",
                sdk="live_state.topology",
            )
        ]

    async def show_topology(self, _request: Request) -> Response:
        loop = asyncio.get_running_loop()
        async with self._lock:  # any number of requests cost one read
            if self._read is None or loop.time() - self._read_at > _MAX_AGE_SECONDS:
                self._read, self._read_at = await self._topology(), loop.time()
        return Response(self._read)

    async def _topology(self) -> Topology:
        servers, clusters, states, storage, processes = await asyncio.gather(
            find_servers(self._connection),
            stream_clusters(self._connection),
            stream_states(self._connection),
            account_storage(self._connection),
            self._processes(),
        )
        return topology_of(servers, clusters, states, storage, processes)


def topology_of(
    servers: Sequence[ServerInfo],
    clusters: Mapping[str, StreamCluster],
    states: Mapping[str, StreamState],
    storage: tuple[int, int],
    processes: list[LiveProcess],
) -> Topology:
    """A single server does not name itself in its streams: then the only server has them all."""
    single = servers[0].name if len(servers) == 1 else ""
    up = {server.name: server for server in servers}
    streams = {name: _stream(name, cluster, states.get(name), single, up.keys()) for name, cluster in clusters.items()}
    shown = [one for name, one in sorted(streams.items()) if not name.startswith(_TENANT_STREAMS) or not _is_healthy(one)]
    names = sorted(up.keys() | {replica.server for one in streams.values() for replica in one.replicas})
    return Topology(
        processes=sorted(processes, key=lambda one: (one.role, one.worker)),
        servers=[_server(name, up.get(name), streams.values()) for name in names],
        streams=sorted(shown, key=lambda one: (_is_healthy(one), one.name))[:_STREAMS_MAX],
        streams_total=len(streams),
        without_leader=sum(not one.has_leader for one in streams.values()),
        without_quorum=sum(not one.has_quorum for one in streams.values()),
        storage_bytes=storage[0],
        storage_limit_bytes=storage[1],
    )


def _stream(name: str, cluster: StreamCluster, state: StreamState | None, single: str, up: Collection[str]) -> TopologyStream:
    """A copy is offline if its leader says so, which it does some seconds late, or if its server does not answer (`up`)."""
    leader = cluster.leader or single
    own = [TopologyReplica(server=leader, is_leader=True, is_current=True, is_offline=False, lag=0)] if leader else []
    others = [
        TopologyReplica(
            server=peer.name,
            is_leader=False,
            is_current=peer.current,
            is_offline=peer.offline or (bool(up) and peer.name not in up),
            lag=peer.lag,
        )
        for peer in cluster.replicas
    ]
    replicas = (*own, *others)
    return TopologyStream(
        name=name,
        replicas=replicas,
        has_leader=bool(leader),
        has_quorum=bool(leader) and _has_quorum(replicas),
        messages=0 if state is None else state.messages,
        bytes=0 if state is None else state.bytes,
    )


def _has_quorum(replicas: Sequence[TopologyReplica], without: str = "") -> bool:
    """True if more than half of the copies are on servers that run."""
    running = [one for one in replicas if not one.is_offline and one.server != without]
    return len(running) > len(replicas) // 2


def _is_healthy(stream: TopologyStream) -> bool:
    return stream.has_quorum and all(one.is_current and not one.is_offline for one in stream.replicas)


def _server(name: str, server: ServerInfo | None, streams: Iterable[TopologyStream]) -> TopologyServer:
    mine = [one for one in streams if any(replica.server == name for replica in one.replicas)]
    critical = sorted(one.name for one in mine if one.has_quorum and not _has_quorum(one.replicas, without=name))
    return TopologyServer(
        name=name,
        tags=() if server is None else server.tags,
        is_up=server is not None,
        leaders=sum(any(replica.server == name and replica.is_leader for replica in one.replicas) for one in mine),
        replicas=len(mine),
        critical=len(critical),
        critical_streams=tuple(critical[:_NAMED_MAX]),
    )
