import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.assembly import described_routes
from postroad.http.messages import Reply, Request
from postroad.http.routing import Route, RouteClash, Router
from postroad.kernel.errors import MethodNotAllowed, RouteNotFound
from postroad.kernel.names import RESERVED
from tests.http.small import route

REAL = described_routes()
LITERALS = sorted({segment for one in REAL for segment in one.path.split("/") if segment and not segment.startswith("{")})


async def handler(_request: Request) -> Reply:
    raise NotImplementedError


def table(*routes: tuple[str, str]) -> list[Route]:
    return [route(path, handler, method) for method, path in routes]


def shape(path: str) -> tuple[str, ...]:
    """The path with its parameters' names left out: what a request cannot tell apart."""
    return tuple("{}" if segment.startswith("{") else segment for segment in path.split("/")[1:])


def takes(wanted: Sequence[str], segments: Sequence[str]) -> bool:
    return len(wanted) == len(segments) and all(
        segment == want if want != "{}" else segment != "" for want, segment in zip(wanted, segments, strict=True)
    )


def expected(routes: Sequence[Route], method: str, path: str) -> Route | int:
    """The rule, written the long way: of all shapes that take the path, the one whose earliest segments are literal."""
    segments = path.split("/")[1:]
    fitting = {shape(one.path) for one in routes if takes(shape(one.path), segments)}
    if not fitting:
        return 404
    best = max(fitting, key=lambda found: [want != "{}" for want in found])
    by_method = {one.method: one for one in routes if shape(one.path) == best}
    return by_method.get(method) or (by_method.get("GET") if method == "HEAD" else None) or 405


def found(router: Router, method: str, path: str) -> Route | int:
    try:
        return router.find(method, path)[0]
    except (RouteNotFound, MethodNotAllowed) as problem:
        return problem.status


# The real table


def test_no_two_routes_are_the_same_to_a_request() -> None:
    shapes = [(one.method, shape(one.path)) for one in REAL]
    assert len(set(shapes)) == len(shapes) > 15


def test_a_path_that_two_routes_could_take_goes_to_the_more_literal_one() -> None:
    router = Router(REAL)
    for one, other in itertools.combinations(REAL, 2):
        path = _meeting(one, other)
        for method in {one.method, other.method} if path else ():
            assert found(router, method, path or "") == expected(REAL, method, path or "")


def test_a_parameter_may_have_any_literal_of_the_table_as_its_value() -> None:
    router = Router(REAL)
    for one, literal in itertools.product([one for one in REAL if one.parameters], LITERALS):
        path = "/" + "/".join(literal if want == "{}" else want for want in shape(one.path))
        assert found(router, one.method, path) == expected(REAL, one.method, path)
        if not any(takes(shape(other.path), path.split("/")[1:]) for other in REAL if shape(other.path) != shape(one.path)):
            assert router.find(one.method, path) == (one, dict.fromkeys(one.parameters, literal))


def _meeting(one: Route, other: Route) -> str | None:
    """A path that both would take, None if there is none."""
    here, there = shape(one.path), shape(other.path)
    if len(here) != len(there) or any(a != b and "{}" not in (a, b) for a, b in zip(here, there, strict=True)):
        return None
    return "/" + "/".join("value" if a == b == "{}" else (b if a == "{}" else a) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("one", REAL, ids=lambda one: f"{one.method} {one.path}")
def test_a_route_is_found_with_its_parameters(one: Route) -> None:
    values = {name: f"the-{name}" for name in one.parameters}
    path = one.path
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    assert Router(REAL).find(one.method, path) == (one, values)


@given(st.data())
def test_any_path_of_known_words_and_others_goes_where_the_rule_says(data: st.DataObject) -> None:
    segments = data.draw(st.lists(st.sampled_from([*LITERALS, "", "x", ".."]) | st.text(max_size=5), min_size=1, max_size=6))
    path = "/" + "/".join(segments)
    method = data.draw(st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]))
    assert found(_ROUTER, method, path) == expected(REAL, method, path)


_ROUTER = Router(REAL)


def test_every_word_after_v1_is_reserved_among_the_names_of_projects() -> None:
    words = {shape(one.path)[1] for one in REAL if shape(one.path)[0] == "v1" and len(shape(one.path)) > 1}
    assert words and "{}" not in words
    assert words <= RESERVED


# Any table


_PATHS = st.lists(st.sampled_from(["a", "b", "c", "{x}", "{y}"]), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
_TABLES = st.lists(st.tuples(st.sampled_from(["GET", "POST"]), _PATHS), max_size=8)


@given(
    _TABLES, st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=4), st.sampled_from(["GET", "POST", "HEAD"])
)
def test_a_literal_wins_over_a_parameter(routes: list[tuple[str, str]], segments: list[str], method: str) -> None:
    unique = {(verb, shape(path)): (verb, path) for verb, path in routes}
    made = table(*unique.values())
    router, path = Router(made), "/" + "/".join(segments)
    assert found(router, method, path) == expected(made, method, path)
    assert found(router, method, path) == expected(made, method, path), "and again, now that it is remembered"


@given(_TABLES)
def test_two_routes_clash_exactly_when_a_request_cannot_tell_them_apart(routes: list[tuple[str, str]]) -> None:
    shapes = [(method, shape(path)) for method, path in routes]
    try:
        Router(table(*routes))
        assert len(set(shapes)) == len(shapes)
    except RouteClash:
        assert len(set(shapes)) < len(shapes)


def test_clashing_routes_are_both_named() -> None:
    with pytest.raises(RouteClash, match=r"GET /a/\{y\} and /a/\{x\}"):
        Router(table(("GET", "/a/{x}"), ("GET", "/a/{y}")))


def test_a_way_that_ends_nowhere_does_not_hide_another() -> None:
    long, short = table(("GET", "/a/b/c"), ("GET", "/{x}/b/{y}"))
    router = Router([long, short])
    assert router.find("GET", "/a/b/d") == (short, {"x": "a", "y": "d"})
    assert router.find("GET", "/a/b/c") == (long, {})


def test_the_methods_of_a_path_include_those_that_come_by_themselves() -> None:
    router = Router(table(("GET", "/a"), ("PUT", "/a"), ("POST", "/b")))
    assert router.methods("/a") == ["GET", "HEAD", "OPTIONS", "PUT"]
    assert router.methods("/b") == ["OPTIONS", "POST"]
    assert router.methods("/c") == []


# What is remembered


def test_what_strangers_ask_for_does_not_fill_the_memory() -> None:
    router = Router(table(("GET", "/a/{x}")))
    router.find("GET", "/a/" + "x" * 10_000)
    assert not router._recent, "a long path is not remembered"
    for number in range(20_000):
        router.find("GET", f"/a/{number}")
    assert len(router._recent) <= 8192
    with pytest.raises(RouteNotFound):
        router.find("GET", "/b")
    assert ("GET", "/b") not in router._recent
