"""Topology: the processes and servers of the installation, and where its streams are."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.live_state import LiveProcess


class TopologyServer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A NATS server."""

    name: str
    tags: tuple[str, ...]
    is_up: bool
    leaders: Annotated[int, Meta(description="Streams that it leads.")]
    replicas: Annotated[int, Meta(description="Streams that it has a copy of, those included.")]
    critical: Annotated[int, Meta(description="Streams that could not be written to if it stopped now.")]
    critical_streams: Annotated[tuple[str, ...], Meta(description="The first of them.")]


class TopologyReplica(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    server: str
    is_leader: bool
    is_current: bool
    is_offline: bool
    lag: int


class TopologyStream(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A JetStream stream of the installation itself, or one that is not healthy."""

    name: str
    replicas: tuple[TopologyReplica, ...]
    has_leader: bool
    has_quorum: bool
    messages: int
    bytes: int


class Topology(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    processes: list[LiveProcess]
    servers: list[TopologyServer]
    streams: list[TopologyStream]
    streams_total: int
    without_leader: int
    without_quorum: int
    storage_bytes: int
    storage_limit_bytes: int
