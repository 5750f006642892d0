import dataclasses
import functools
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.access.tenants import reserved_words
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route, RouteConflict, Router
from postroad.kernel.errors import InvalidParameter, MethodNotAllowed, RouteNotFound
from tests.described import ROUTES
from tests.http.small import route
from tests.looping import for_each

REAL = ROUTES
LITERALS = sorted({segment for one in REAL for segment in one.path.split("/") if segment and not segment.startswith("{")})


async def handler(_request: Request) -> Response:
    raise NotImplementedError


ANY, REST = "{}", "{...}"


def table(*routes: tuple[str, str]) -> list[Route]:
    """A path that ends in `{...}` matches the rest."""
    return [route(path, handler, method, matches_rest=path.endswith(REST)) for method, path in routes]


def shape(one: Route) -> tuple[str, ...]:
    """The path without the names of its parameters. Routes of the same shape match the same requests."""
    return _shape(one.path, one.matches_rest)


@functools.cache
def _shape(path: str, matches_rest: bool) -> tuple[str, ...]:
    *segments, last = (ANY if segment.startswith("{") else segment for segment in path.split("/")[1:])
    return (*segments, REST if matches_rest else last)


def takes(wanted: Sequence[str], segments: Sequence[str]) -> bool:
    if wanted[-1] == REST:  # of which only the first segment may not be empty
        wanted, segments = (*wanted[:-1], ANY), segments[: len(wanted)]
    return len(wanted) == len(segments) and all(
        segment == want if want != ANY else segment != "" for want, segment in zip(wanted, segments, strict=True)
    )


def expected(routes: Sequence[Route], method: str, path: str) -> Route | int:
    """The rule without optimisation: of all shapes that match the path, the one whose first segments are literals, then
    parameters."""
    segments = path.split("/")[1:]
    fitting = {shape(one) for one in routes if takes(shape(one), segments)}
    if not fitting:
        return 404
    best = max(fitting, key=lambda found: [(REST, ANY).index(want) if want in (REST, ANY) else 2 for want in found])
    by_method = {one.method: one for one in routes if shape(one) == best}
    return by_method.get(method) or (by_method.get("GET") if method == "HEAD" else None) or 405


def found(router: Router, method: str, path: str) -> Route | int:
    try:
        return router.find(method, path)[0]
    except (RouteNotFound, MethodNotAllowed) as problem:
        return problem.status


# The real table


def test_routes_are_unambiguous() -> None:
    shapes = [(one.method, shape(one)) for one in REAL]
    assert len(set(shapes)) == len(shapes) > 15


def test_the_more_literal_route_takes_precedence() -> None:
    router = Router(REAL)
    for one, other in itertools.combinations(REAL, 2):
        path = _meeting(one, other)
        for method in {one.method, other.method} if path else ():
            assert found(router, method, path or "") == expected(REAL, method, path or "")


def test_a_parameter_may_have_any_literal_of_the_table_as_its_value() -> None:
    router = Router(REAL)
    with_parameters = [one for one in REAL if one.parameters]
    some = (itertools.product([one], LITERALS[number % 8 :: 8]) for number, one in enumerate(with_parameters))  # all take seconds
    for one, literal in itertools.chain.from_iterable(some):
        path = "/" + "/".join(literal if want in (ANY, REST) else want for want in shape(one))
        assert found(router, one.method, path) == expected(REAL, one.method, path)
        if not any(takes(shape(other), path.split("/")[1:]) for other in REAL if shape(other) != shape(one)):
            assert router.find(one.method, path) == (one, dict.fromkeys(one.parameters, literal))


def _meeting(one: Route, other: Route) -> str | None:
    """A path that both match, None if there is none."""
    length = max(len(shape(one)), len(shape(other)))
    here, there = _stretched(shape(one), length), _stretched(shape(other), length)
    if len(here) != len(there) or any(a != b and ANY not in (a, b) for a, b in zip(here, there, strict=True)):
        return None
    return "/" + "/".join("value" if a == b == ANY else (b if a == ANY else a) for a, b in zip(here, there, strict=True))


def _stretched(wanted: tuple[str, ...], length: int) -> tuple[str, ...]:
    """The shape with this number of segments, if the last one matches the rest."""
    return (*wanted[:-1], *[ANY] * (length - len(wanted) + 1)) if wanted[-1] == REST else wanted


@for_each(REAL, lambda one: f"{one.method} {one.path}")
def test_a_route_is_found_with_its_parameters(one: Route) -> None:
    values = {name: f"the-{name}" for name in one.parameters}
    path = one.path
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    assert Router(REAL).find(one.method, path) == (one, values)


@given(st.data())
def test_random_paths_are_routed_by_the_rule(data: st.DataObject) -> None:
    some = st.text(st.characters(exclude_characters="%."), max_size=5)
    segments = data.draw(st.lists(st.sampled_from([*LITERALS, "", "x"]) | some, min_size=1, max_size=6))
    path = "/" + "/".join(segments)
    method = data.draw(st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]))
    assert found(_ROUTER, method, path) == expected(REAL, method, path)


_ROUTER = Router(REAL)


def test_every_word_after_v1_is_reserved() -> None:
    """A tenant of such an id would be hidden by the literal segment."""
    following = [one for one in REAL if one.path.startswith("/v1/")]
    of_projects = [one for one in following if shape(one)[1] == ANY]
    assert {one.path.split("/")[2] for one in of_projects} == {"{project}"}
    assert "stream" in {shape(one)[2] for one in of_projects} and not {ANY, REST} & {shape(one)[2] for one in of_projects}
    words = {shape(one)[1] for one in following} - {ANY}
    assert len(words) > 5
    assert words == reserved_words(one.path for one in REAL)


@pytest.mark.parametrize(
    "one", [one for one in REAL if one.path.startswith("/v1/{project}/stream/")], ids=lambda one: f"{one.method} {one.path}"
)
def test_a_stream_of_a_project_has_the_same_routes_as_without(one: Route) -> None:
    """The requirements must not depend on the form of the path."""
    [plain] = [other for other in REAL if (other.method, other.path) == (one.method, one.path.replace("/{project}", ""))]
    fields = {field.name for field in dataclasses.fields(Route)} - {"path", "guarded", "handler", "body_decoder"}
    assert {name for name in fields if getattr(one, name) != getattr(plain, name)} == set()
    assert one.guarded == plain.guarded


# Any table


_SEGMENTS = st.lists(st.sampled_from(["a", "b", "c", "{x}", "{y}"]), max_size=3)
_LAST = st.sampled_from(["a", "b", "c", "{x}", "{y}", REST])
_PATHS = st.tuples(_SEGMENTS, _LAST).map(lambda parts: "/" + "/".join((*parts[0], parts[1])))
_TABLES = st.lists(st.tuples(st.sampled_from(["GET", "POST"]), _PATHS), max_size=8)


@given(
    _TABLES, st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=4), st.sampled_from(["GET", "POST", "HEAD"])
)
def test_literals_precede_parameters_and_those_the_rest(routes: list[tuple[str, str]], segments: list[str], method: str) -> None:
    made = list({(one.method, shape(one)): one for one in table(*routes)}.values())
    router, path = Router(made), "/" + "/".join(segments)
    assert found(router, method, path) == expected(made, method, path)
    assert found(router, method, path) == expected(made, method, path), "and again, now that it is remembered"


@given(_TABLES)
def test_routes_conflict_if_they_match_the_same_requests(routes: list[tuple[str, str]]) -> None:
    shapes = [(one.method, shape(one)) for one in table(*routes)]
    try:
        Router(table(*routes))
        assert len(set(shapes)) == len(shapes)
    except RouteConflict:
        assert len(set(shapes)) < len(shapes)


def test_conflicting_routes_are_both_named() -> None:
    with pytest.raises(RouteConflict, match=r"GET /a/\{y\} and /a/\{x\}"):
        Router(table(("GET", "/a/{x}"), ("GET", "/a/{y}")))


def test_a_dead_end_does_not_hide_another_route() -> None:
    long, short = table(("GET", "/a/b/c"), ("GET", "/{x}/b/{y}"))
    router = Router([long, short])
    assert router.find("GET", "/a/b/d") == (short, {"x": "a", "y": "d"})
    assert router.find("GET", "/a/b/c") == (long, {})


def test_the_methods_of_a_path_include_head_and_options() -> None:
    router = Router(table(("GET", "/a"), ("PUT", "/a"), ("POST", "/b")))
    assert router.methods("/a") == ["GET", "HEAD", "OPTIONS", "PUT"]
    assert router.methods("/b") == ["OPTIONS", "POST"]
    assert router.methods("/c") == []


# The rest of a path


def test_a_literal_is_preferred_then_one_segment_then_the_rest() -> None:
    literal, single, rest = table(("GET", "/s/a"), ("GET", "/s/{x}"), ("GET", "/s/{...}"))
    for routes in itertools.permutations([literal, single, rest]):
        router = Router(routes)
        assert router.find("GET", "/s/a") == (literal, {})
        assert router.find("GET", "/s/b") == (single, {"x": "b"})
        assert router.find("GET", "/s/a/b")[0] is rest


def test_the_rest_is_one_parameter_with_its_slashes() -> None:
    [rest] = table(("GET", "/{x}/s/{...}"))
    router = Router([rest])
    assert router.find("GET", "/p/s/a") == (rest, {"x": "p", "...": "a"})
    assert router.find("GET", "/p/s/a/s/b.c/d") == (rest, {"x": "p", "...": "a/s/b.c/d"})
    assert router.find("GET", "/s/s/s/s") == (rest, {"x": "s", "...": "s/s"})


@pytest.mark.parametrize("path", ["/s", "/s/", "/s//", "/s//a", "/", "//s/a", "/S/a"])
def test_an_empty_rest_is_not_found(path: str) -> None:
    router = Router(table(("GET", "/s/{...}")))
    with pytest.raises(RouteNotFound):
        router.find("GET", path)
    assert router.methods(path) == []


@pytest.mark.parametrize("rest", ["a/", "a//b", "a//", ".a/...", "a+b"])
def test_the_rest_is_passed_unchanged(rest: str) -> None:
    """A trailing slash is part of the name."""
    assert Router(table(("GET", "/s/{...}"))).find("GET", f"/s/{rest}")[1] == {"...": rest}


@pytest.mark.parametrize("rest", [".", "..", "a/./b", "a/../b", "%2e%2e/b", "a/%2E", "a%2f..%2Fb", "%ff", "a/%c3"])
def test_dot_segments_and_invalid_encoding_are_refused(rest: str) -> None:
    with pytest.raises(InvalidParameter):
        Router(table(("GET", "/s/{...}"))).find("GET", f"/s/{rest}")


def test_only_parameters_are_decoded() -> None:
    single, rest = table(("GET", "/q/{x}/messages"), ("GET", "/s/{...}"))
    router = Router([single, rest])
    assert router.find("GET", "/q/a%3Ab/messages") == (single, {"x": "a:b"})
    assert router.find("GET", "/s/a%2Fb/c%20d") == (rest, {"...": "a/b/c d"})
    for path in ("/%71/a/messages", "/q/a/%6dessages", "/q%2Fa/messages", "/q/a%2Fmessages"):
        with pytest.raises(RouteNotFound):
            router.find("GET", path)
    with pytest.raises(InvalidParameter, match="encoded slash"):
        router.find("GET", "/q/a%2Fb/messages")


def test_an_encoded_literal_is_not_the_value_of_a_parameter() -> None:
    router = Router(table(("GET", "/q/all"), ("GET", "/q/{x}"), ("GET", "/s/own/{x}"), ("GET", "/s/{...}")))
    for path in ("/q/%61ll", "/s/%6fwn/a"):
        with pytest.raises(RouteNotFound):
            router.find("GET", path)


def test_the_rest_matches_after_a_longer_dead_end() -> None:
    deep, rest = table(("GET", "/s/own/{x}/y"), ("GET", "/s/{...}"))
    router = Router([deep, rest])
    assert router.find("GET", "/s/own/1/y") == (deep, {"x": "1"})
    assert router.find("GET", "/s/own/1/z") == (rest, {"...": "own/1/z"})
    assert router.find("GET", "/s/own/1/y/z") == (rest, {"...": "own/1/y/z"})
    assert router.find("GET", "/s/own") == (rest, {"...": "own"})


def test_the_method_does_not_change_the_matched_path() -> None:
    router = Router(table(("GET", "/s/own/{x}"), ("PUT", "/s/{...}")))
    with pytest.raises(MethodNotAllowed):
        router.find("PUT", "/s/own/1")
    assert router.methods("/s/own/1") == ["GET", "HEAD", "OPTIONS"]
    assert router.methods("/s/own/1/2") == ["OPTIONS", "PUT"]


def test_two_routes_with_the_same_rest_conflict() -> None:
    with pytest.raises(RouteConflict, match=r"GET /s/\{b\} and /s/\{a\}"):
        Router([route("/s/{a}", handler, matches_rest=True), route("/s/{b}", handler, matches_rest=True)])


def test_a_long_path_is_found_and_not_cached() -> None:
    router, long = Router(table(("GET", "/s/{...}"))), "a/" * 20_000 + "a"
    assert router.find("GET", f"/s/{long}")[1] == {"...": long}
    assert not router._cache


# What is remembered


def test_the_cache_of_paths_is_bounded() -> None:
    router = Router(table(("GET", "/a/{x}")))
    router.find("GET", "/a/" + "x" * 10_000)
    assert not router._cache, "a long path is not remembered"
    for number in range(20_000):
        router.find("GET", f"/a/{number}")
    assert len(router._cache) <= 8192
    with pytest.raises(RouteNotFound):
        router.find("GET", "/b")
    assert ("GET", "/b") not in router._cache
