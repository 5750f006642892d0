"""Placement rules: from a setting `geo` to the tags that JetStream places a stream by. Pure.

JetStream places a stream on servers that have every tag of its placement, and none of the tags that follow a `!`. A server has
the tag of its region; a geo is placed by excluding the regions of all other geos.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.kernel.errors import BodyInvalid, EngineUnavailable
from postroad.kernel.json import invalid_field
from postroad.kernel.regions import AUTO, GEOS, TAG, RegionEntry

_NAMED_MAX = 12  # servers or places that a message names


@dataclass(frozen=True, slots=True)
class Node:
    """A server. `is_up` is false if it has answered before and does not now."""

    name: str
    tags: tuple[str, ...] = ()
    is_up: bool = True


@dataclass(frozen=True, slots=True)
class Map:
    """The regions, and the one that this gateway is in (None: unknown)."""

    regions: tuple[RegionEntry, ...]
    own: str | None = None

    def region_of(self, node: Node) -> RegionEntry | None:
        """The first of the server's regions in the table."""
        return next((entry for entry in self.regions if entry.tag in node.tags), None)

    def geo_of(self, node: Node) -> str | None:
        entry = self.region_of(node)
        return None if entry is None else entry.geo

    @property
    def own_geo(self) -> str | None:
        return next((entry.geo for entry in self.regions if entry.name == self.own), None)


def placement_tags(regions: Map, nodes: Sequence[Node], geo: str | None, replicas: int) -> tuple[str, ...]:
    """The tags for `geo`; none means any servers. Without known nodes the engine decides whether there are enough.

    Raises BodyInvalid for an unknown place and for one with too few servers, EngineUnavailable if it had enough a while ago.
    """
    if geo is None or geo == AUTO:
        return _own_tags(regions, nodes, replicas)
    tags = _tags_of(regions, geo)
    if not nodes:
        return tags
    eligible = [node for node in nodes if _matches(node, tags)]
    if geo in GEOS:
        _check_tagged(regions, eligible)
    elif not eligible and tags == (geo,):
        raise invalid_field("$.geo", _unknown(regions, nodes, geo))
    _check_count(regions, nodes, eligible, replicas, where=geo)
    return tags


def check_replicas(regions: Map, nodes: Sequence[Node], replicas: int) -> None:
    """Raises like `placement_tags` if all servers together are too few for this number of copies."""
    if nodes:
        _check_count(regions, nodes, list(nodes), replicas, where=None)


def _own_tags(regions: Map, nodes: Sequence[Node], replicas: int) -> tuple[str, ...]:
    geo = regions.own_geo
    if geo is None:
        return ()
    tags = _geo_tags(regions, geo)
    eligible = [node for node in nodes if _matches(node, tags)]
    has_enough = sum(node.is_up for node in eligible) >= replicas
    return tags if has_enough and all(regions.geo_of(node) == geo for node in eligible) else ()


def _tags_of(regions: Map, geo: str) -> tuple[str, ...]:
    if geo in GEOS:
        return _geo_tags(regions, geo)
    return (f"{TAG}{geo}",) if any(entry.name == geo for entry in regions.regions) else (geo,)


def _geo_tags(regions: Map, geo: str) -> tuple[str, ...]:
    return tuple(f"!{entry.tag}" for entry in regions.regions if entry.geo != geo)


def _matches(node: Node, tags: Iterable[str]) -> bool:
    return all(tag[1:] not in node.tags if tag.startswith("!") else tag in node.tags for tag in tags)


def _check_tagged(regions: Map, eligible: Sequence[Node]) -> None:
    """A server without a region cannot be excluded."""
    untagged = [node.name for node in eligible if regions.geo_of(node) is None]
    if untagged:
        reason = f"no place can be chosen by geo: {_listed(untagged)} has no tag of a region ({TAG}<name>)"
        raise invalid_field("$.geo", f"{reason}; tag the servers (POSTROAD_REGION tags the embedded one), or use `auto`")


def _check_count(regions: Map, nodes: Sequence[Node], eligible: Sequence[Node], replicas: int, where: str | None) -> None:
    up = [node for node in eligible if node.is_up]
    if len(up) >= replicas:
        return
    place = "the cluster" if where is None else where
    if len(eligible) >= replicas:
        down = _listed([node.name for node in eligible if not node.is_up])
        raise EngineUnavailable(f"{place} has {len(up)} servers for {replicas} replicas: {down} does not answer", retry_after=5)
    raise _too_few(regions, nodes, up, replicas, where, place)


def _too_few(
    regions: Map, nodes: Sequence[Node], up: Sequence[Node], replicas: int, where: str | None, place: str
) -> BodyInvalid:
    found = (
        "no server" if not up else f"{len(up)} server{'s' if len(up) > 1 else ''} ({_listed([_located(regions, n) for n in up])})"
    )
    detail = f"{place} has {found}, and {replicas} replica{'s need' if replicas > 1 else ' needs'} as many"
    others = [_located(regions, node) for node in nodes if node not in up and node.is_up]
    if others:
        detail += f"; others are {_listed(others)}"
    return invalid_field("$.replicas" if where is None else "$.geo", detail)


def _located(regions: Map, node: Node) -> str:
    entry = regions.region_of(node)
    return f"{node.name} without a region" if entry is None else f"{node.name} in {entry.name}"


def _unknown(regions: Map, nodes: Sequence[Node], geo: str) -> str:
    tags = sorted({tag for node in nodes for tag in node.tags})
    known = [*GEOS, *(entry.name for entry in regions.regions), *tags, AUTO]
    lowered = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(geo.lower(), lowered, n=1, cutoff=0.0)
    return f"{geo!r} is unknown; did you mean {lowered[near[0]]!r}? `GET /v1/regions` lists regions and tags"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
