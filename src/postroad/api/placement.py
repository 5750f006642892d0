"""Placement of streams: the setting `geo`, the servers that hold a stream, and the regions of an installation."""

from typing import Annotated

import msgspec
from msgspec import Meta

Geo = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9:_-]+$",
        description="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers.",
    ),
]


class Replica(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A server that keeps a copy."""

    node: str
    region: Annotated[str | None, Meta(description="Null if the server has no tag of a region.")]
    is_leader: bool
    is_current: Annotated[bool, Meta(description="It has everything that the leader has.")]
    is_offline: bool
    lag: Annotated[int, Meta(description="Operations that it is behind the leader.")] = 0


class Placement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Where a resource is stored."""

    leader: Annotated[str | None, Meta(description="Server that orders the writes; null while there is none.")]
    region: Annotated[str | None, Meta(description="Region of the leader; null if it is unknown.")]
    replicas: list[Replica]
    moving_to: Annotated[list[str], Meta(description="Servers that will keep the copies once a move is complete.")] = []


class RegionNode(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A server of the engine. `leaders` and `replicas` count the caller's queues, topics and buckets."""

    name: str
    tags: list[str]
    is_up: Annotated[bool, Meta(description="False if it answered within the last hour, and does not answer now.")]
    leaders: int
    replicas: int


class Region(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A region with its servers. `leaders` and `replicas` count the caller's queues, topics and buckets."""

    name: Annotated[str, Meta(description="Empty for the servers without a region.")]
    geo: Annotated[str, Meta(description="`na`, `sa`, `eu`, `ap`, `oc` or `af`; empty for the servers without a region.")]
    tag: Annotated[str, Meta(description="Tag that the servers of the region have.")]
    nodes: list[RegionNode]
    leaders: int
    replicas: int


class RegionOverview(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The regions of the installation, its servers, and where the caller's queues, topics and buckets are."""

    region: Annotated[str | None, Meta(description="Region of this gateway; null if it is not set.")]
    geo: Annotated[str | None, Meta(description="Geo of this gateway.")]
    regions: list[Region]
    streams: Annotated[int, Meta(description="The caller's queues, topics and buckets.")]
    without_leader: Annotated[list[str], Meta(description="Those that cannot be written now, such as `queue/orders`.")]
    moving: Annotated[list[str], Meta(description="Those that are being moved to other servers.")]


class RegionsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    empty: Annotated[bool, Meta(description="Regions without servers, too.")] = True


class MoveRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What started a move: the new placement."""

    geo: str | None
    replicas: int
