"""The servers of a cluster, and those that hold each stream.

Every server replies to `$SYS.REQ.ACCOUNT.PING.CONNZ`, a request that each account may make about itself. The reply names the
server and its tags; nothing else of it is used.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from postroad.jetstream.api_errors import STREAM_NOT_FOUND, ApiFailure, translate
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.protocol import encode_plain

_PING = "$SYS.REQ.ACCOUNT.PING.CONNZ"
_FIRST_REPLY_SECONDS = 1.0
_NEXT_REPLY_SECONDS = 0.5  # longer than a request to the other side of the world takes


class ServerInfo(msgspec.Struct, frozen=True):
    name: str
    tags: tuple[str, ...] = ()
    jetstream: bool = False


class _PingReply(msgspec.Struct):
    server: ServerInfo


_decode_ping = msgspec.json.Decoder(_PingReply).decode


async def find_servers(connection: Connection) -> list[ServerInfo]:
    """The servers with JetStream that answer now, by name; none if the account may not ask, or the connection is lost."""
    servers: dict[str, ServerInfo] = {}
    try:
        reply_subject, replies = connection.expect_many()
    except ConnectionLost:
        return []
    try:
        connection.send(encode_plain(_PING, b'{"limit":1}', reply_subject))
        while not servers or connection.is_clustered:
            async with asyncio.timeout(_NEXT_REPLY_SECONDS if servers else _FIRST_REPLY_SECONDS):
                reply = await replies.get()
            if reply is None or reply.status == "503":
                return []
            server = _decode_ping(reply.data).server
            servers[server.name] = server
    except (TimeoutError, ConnectionLost, msgspec.DecodeError):
        pass
    finally:
        connection.forget(reply_subject)
    return sorted((one for one in servers.values() if one.jetstream), key=lambda one: one.name)


class Peer(msgspec.Struct, frozen=True):
    name: str
    current: bool = False
    offline: bool = False
    lag: int = 0


class _Desired(msgspec.Struct, frozen=True):
    replicas: tuple[Peer, ...] = ()


class StreamCluster(msgspec.Struct, frozen=True):
    """The servers of a stream: `leader` is empty while there is none, `replicas` are the others. `desired`: of a move."""

    leader: str = ""
    replicas: tuple[Peer, ...] = ()
    desired: _Desired | None = None

    @property
    def moving_to(self) -> list[str]:
        return [] if self.desired is None else sorted(peer.name for peer in self.desired.replicas)

    @property
    def moved(self) -> int:
        """The number of servers of a move's target that have everything already."""
        current = {self.leader, *(peer.name for peer in self.replicas if peer.current)}
        return sum(name in current for name in self.moving_to)

    @property
    def nodes(self) -> list[str]:
        return [name for name in (self.leader, *(peer.name for peer in self.replicas)) if name]


class _InfoResponse(msgspec.Struct):
    cluster: StreamCluster | None = None


_decode_info = msgspec.json.Decoder(_InfoResponse).decode


async def stream_cluster(connection: Connection, stream: str) -> StreamCluster | None:
    """None if the stream does not exist. Raises EngineUnavailable."""
    try:
        return _decode_info(await connection.api(f"STREAM.INFO.{stream}")).cluster or StreamCluster()
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return None
        raise translate(failure.error) from failure


class _Named(msgspec.Struct):
    name: str


class _Listed(msgspec.Struct):
    config: _Named
    cluster: StreamCluster | None = None


class _ListResponse(msgspec.Struct):
    streams: list[_Listed] | None = None
    missing: list[str] | None = None
    total: int = 0


_decode_list = msgspec.json.Decoder(_ListResponse).decode


async def stream_clusters(connection: Connection) -> Mapping[str, StreamCluster]:
    """The servers of every stream, read in pages of some hundred. A stream whose leader does not answer has none."""
    found: dict[str, StreamCluster] = {}
    while True:
        response = _decode_list(await connection.call("STREAM.LIST", {"offset": len(found)}))
        page: Sequence[_Listed] = response.streams or []
        before = len(found)
        found |= {one.config.name: one.cluster or StreamCluster() for one in page}
        found |= {name: StreamCluster() for name in response.missing or () if name not in found}
        if len(found) == before or len(found) >= response.total:
            return found
