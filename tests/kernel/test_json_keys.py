"""Duplicate keys are found in the objects that a type declares, and only there."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.json_keys import duplicate_key, shape_of


class Inner(msgspec.Struct):
    x: int = 0
    tags: dict[str, str] = {}


class Outer(msgspec.Struct):
    payload: msgspec.Raw = msgspec.Raw(b"null")
    anything: Any = None
    one: Inner | None = None
    many: list[Inner] = []
    headers: dict[str, str] | None = None
    maps: dict[str, Inner] = {}
    count: int = 0


OUTER = shape_of(Outer)


def found(text: str) -> str | None:
    assert OUTER is not None
    msgspec.json.decode(text, type=Outer)
    return duplicate_key(text.encode(), OUTER)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"count":1,"count":1}', "count"),
        ('{"count": 1, "count": 2}', "count"),
        ('{"headers":{"a":"1","b":"2","a":"3"}}', "a"),
        ('{"one":{"x":1,"x":2}}', "x"),
        ('{"one":{"tags":{"t":"1","t":"2"}}}', "t"),
        ('{"many":[{"x":1},{"x":1,"x":2}]}', "x"),
        ('{"many": [{"x": 1}, {"tags": {"t": "1", "t": "2"}}]}', "t"),
        ('{"maps":{"m":{"x":1},"m":{"x":2}}}', "m"),
        ('{"maps":{"m":{"x":1},"n":{"x":2,"x":3}}}', "x"),
        ('{"count":1,"one":null,"many":[],"maps":{},"c\\u006funt":2}', "count"),  # the same key, written in two ways
        ('{"count":1,"one":null,"many":[],"maps":{},"count":1}', "count"),  # as long as with spaces
    ],
)
def test_a_key_that_is_given_twice_is_found(text: str, key: str) -> None:
    assert found(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"count":1}',
        '{"count": 1, "one": {"x": 1, "tags": {}}}',
        ' {\n "count" : 1 ,\n "many" : [ ] } ',
        '{"payload":{"a":1,"a":2},"anything":[{"b":1,"b":2}]}',  # opaque
        '{"one":null,"headers":null,"many":[]}',
        '{"many":[{"x":1},{"x":1}],"headers":{"count":"1"}}',
    ],
)
def test_other_json_has_none(text: str) -> None:
    assert found(text) is None


def test_a_deeply_nested_value_is_not_an_error() -> None:
    assert OUTER is not None
    assert duplicate_key(b'{ "payload":' + b"[" * 800 + b"]" * 800 + b"}", OUTER) is None


def test_types_without_objects_have_no_shape() -> None:
    assert shape_of(list[int]) is None and shape_of(str | None) is None


names = st.sampled_from(["count", "one", "headers", "many", "payload"])
values = {
    "count": st.just("1"),
    "one": st.sampled_from(["null", '{"x":1}', '{"x": 1}', '{"x":1,"x":1}']),
    "headers": st.sampled_from(["null", "{}", '{"a":"1"}', '{"a": "1", "b": "2"}', '{"a":"1","a":"1"}']),
    "many": st.sampled_from(["[]", '[{"x":1}]', '[{"x": 1}, {}]', '[{},{"x":1,"x":1}]']),
    "payload": st.sampled_from(["1", '{"a":1,"a":1}', '"\\": "']),
}
pairs = names.flatmap(lambda name: st.tuples(st.just(name), values[name]))


@given(st.lists(pairs, max_size=8), st.sampled_from([",", ", ", " ,\n"]), st.sampled_from([":", ": ", " : "]))
def test_it_agrees_with_a_parser(given_pairs: list[tuple[str, str]], comma: str, colon: str) -> None:
    text = "{" + comma.join(f'"{name}"{colon}{value}' for name, value in given_pairs) + "}"
    keys = [name for name, _ in given_pairs]
    is_repeated = len(set(keys)) < len(keys)
    last = dict(given_pairs)  # a decoder's choice, if keys are repeated
    for name in ("one", "headers", "many"):
        is_repeated |= _has_repeated(last.get(name, "null"))
    assert (found(text) is not None) == is_repeated


def _has_repeated(text: str) -> bool:
    seen: list[bool] = []
    json.loads(text, object_pairs_hook=lambda some: seen.append(len({key for key, _ in some}) < len(some)))
    return any(seen)
