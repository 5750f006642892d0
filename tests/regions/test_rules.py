"""Rules of placement: tags, unknown places, too few servers; the table of regions."""

import pytest

from postroad.kernel.errors import BodyInvalid, EngineUnavailable
from postroad.kernel.regions import GEOS, SHIPPED, RegionEntry, distance_km, parse_table
from postroad.regions.rules import Map, Node, check_replicas, placement_tags

EUROPE = [Node("n1", ("region:eu-west",)), Node("n2", ("region:eu-central", "ssd")), Node("n3", ("region:fr-par",))]
AMERICA = [Node("n4", ("region:us-east",)), Node("n5", ("region:us-west", "ssd"))]
NODES = [*EUROPE, *AMERICA]
REGIONS = Map(SHIPPED)


def refused(geo: str | None, replicas: int, nodes: list[Node] = NODES, regions: Map = REGIONS) -> str:
    with pytest.raises(BodyInvalid) as caught:
        placement_tags(regions, nodes, geo, replicas)
    return caught.value.detail


def test_a_region_and_a_tag_are_placed_by_their_tag() -> None:
    assert placement_tags(REGIONS, NODES, "us-east", 1) == ("region:us-east",)
    assert placement_tags(REGIONS, NODES, "region:us-east", 1) == ("region:us-east",)
    assert placement_tags(REGIONS, NODES, "ssd", 1) == ("ssd",)


def test_a_geo_is_placed_by_excluding_the_regions_of_all_others() -> None:
    tags = placement_tags(REGIONS, NODES, "eu", 3)
    assert len(tags) == 21 and all(tag.startswith("!region:") for tag in tags)
    assert "!region:us-east" in tags and "!region:eu-west" not in tags


def test_auto_is_the_own_geo_if_it_has_enough_servers_else_anywhere() -> None:
    for geo in (None, "auto"):
        assert placement_tags(REGIONS, NODES, geo, 3) == ()
        assert placement_tags(Map(SHIPPED, "nl-ams"), NODES, geo, 3) == placement_tags(REGIONS, NODES, "eu", 3)
        assert placement_tags(Map(SHIPPED, "us-sea"), NODES, geo, 3) == (), "two servers are too few"
        assert placement_tags(Map(SHIPPED, "us-sea"), NODES, geo, 1) == placement_tags(REGIONS, NODES, "na", 1)
        with_untagged = [*NODES, Node("n6")]
        assert placement_tags(Map(SHIPPED, "nl-ams"), with_untagged, geo, 3) == (), "n6 could be anywhere"


@pytest.mark.parametrize(
    ("geo", "near"),
    [("eu-wst", "eu-west"), ("EU", "eu"), ("us_east", "us-east"), ("sdd", "ssd"), ("frankfurt", "auto"), ("x", "")],
)
def test_an_unknown_place_is_refused_with_the_nearest(geo: str, near: str) -> None:
    detail = refused(geo, 1)
    assert f"{geo!r} is unknown; did you mean" in detail
    if near != "auto":
        assert near in detail


def test_too_few_servers_are_refused_with_their_number_and_place() -> None:
    detail = refused("na", 3)
    assert "na has 2 servers (n4 in us-east, n5 in us-west), and 3 replicas need as many" in detail
    assert "others are n1 in eu-west" in detail
    assert "jp-osa has no server, and 1 replica needs as many" in refused("jp-osa", 1)
    with pytest.raises(BodyInvalid, match=r"the cluster has 5 servers .*\(at \$\.replicas\)"):
        check_replicas(REGIONS, NODES, 7)
    check_replicas(REGIONS, NODES, 5)
    check_replicas(REGIONS, [], 5)


def test_a_server_that_does_not_answer_counts_as_unavailable_for_now() -> None:
    nodes = [*EUROPE[:2], Node("n3", ("region:fr-par",), is_up=False)]
    with pytest.raises(EngineUnavailable, match="n3 does not answer"):
        placement_tags(REGIONS, nodes, "eu", 3)
    assert placement_tags(Map(SHIPPED, "eu-west"), nodes, "auto", 3) == ()


def test_a_geo_cannot_be_chosen_beside_servers_without_a_region() -> None:
    assert "n6 has no tag of a region" in refused("eu", 3, [*NODES, Node("n6")])
    assert placement_tags(REGIONS, [*NODES, Node("n6")], "eu-west", 1) == ("region:eu-west",)


def test_without_known_servers_the_engine_decides() -> None:
    assert placement_tags(REGIONS, [], "eu-west", 3) == ("region:eu-west",)
    assert placement_tags(REGIONS, [], "rack-7", 3) == ("rack-7",)


def test_27_regions_are_shipped_and_each_geo_has_three() -> None:
    assert len({entry.name for entry in SHIPPED}) == 27
    assert all(sum(entry.geo == geo for entry in SHIPPED) >= 3 for geo in GEOS)
    named = {entry.name: entry for entry in SHIPPED}
    assert 300 < distance_km(named["eu-west"], named["fr-par"]) < 400
    assert 16_000 < distance_km(named["eu-west"], named["ap-southeast"]) < 18_000


def test_a_table_of_ones_own_replaces_it() -> None:
    assert parse_table("fra=eu, iad = na") == (RegionEntry("fra", "eu"), RegionEntry("iad", "na"))
    assert parse_table("") == SHIPPED
    own = Map(parse_table("fra=eu,iad=na"))
    nodes = [Node("a", ("region:fra",)), Node("b", ("region:iad",))]
    assert placement_tags(own, nodes, "eu", 1) == ("!region:iad",)
    with pytest.raises(BodyInvalid, match="unknown"):
        placement_tags(own, nodes, "eu-west", 1)


@pytest.mark.parametrize("text", ["fra", "fra=xx", "=eu", "fra=eu,fra=na", "eu=eu", "auto=eu", "a b=eu", "x" * 41 + "=eu"])
def test_an_invalid_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_table(text)
