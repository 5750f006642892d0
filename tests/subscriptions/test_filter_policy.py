"""Filter policies: every operator in both scopes, what is refused, and a naive second implementation."""

import ipaddress
import json
import sys
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from postroad.api.subscriptions import FilterInvalid
from postroad.subscriptions.filter_policy import FilterPolicy, Scope
from postroad.subscriptions.value_tests import MISSING

ATTRIBUTES: Scope = "MessageAttributes"
BODY: Scope = "MessageBody"


def matches(conditions: list[Any], value: Any, scope: Scope) -> bool:
    policy = FilterPolicy(json.dumps({"key": conditions}), scope)
    message = {} if value is MISSING else {"key": value}
    return policy.matches(message, {}) if scope == BODY else policy.matches(MISSING, message)


OPERATORS: list[tuple[list[Any], list[Any], list[Any]]] = [
    (["a", "b"], ["a", "b", ["x", "b"]], ["c", "A", 1, MISSING, None, []]),
    ([5], [5, 5.0, 5.000001, [4, 5]], ["5", 6, True, 10**400, MISSING]),
    ([True], [True, [False, True]], [False, 1, "true", MISSING]),
    ([None], [None, [None]], ["null", 0, MISSING, False]),
    ([{"prefix": "ab"}], ["ab", "abc", ["x", "abc"]], ["a", "xab", 1, MISSING]),
    ([{"suffix": ".png"}], ["a.png", ".png"], ["png", "a.png.gz", MISSING]),
    ([{"equals-ignore-case": "Tennis"}], ["tennis", "TENNIS"], ["tenni", 1, MISSING]),
    ([{"anything-but": "a"}], ["b", 1, ["a", "b"]], ["a", MISSING, ["a"]]),
    ([{"anything-but": ["a", "b"]}], ["c", ""], ["a", "b", MISSING]),
    ([{"anything-but": [1, 2]}], [3, "1", 10**400], [1, 2.0, MISSING]),
    ([{"anything-but": {"prefix": "a"}}], ["b"], ["a", "ab", MISSING]),
    ([{"anything-but": {"suffix": "z"}}], ["zb"], ["az", MISSING]),
    ([{"numeric": ["=", 3.5]}], [3.5, [1, 3.5]], [3.6, "3.5", MISSING]),
    ([{"numeric": [">", 1]}], [1.00001, 2], [1, 1.000001, "2", MISSING]),
    ([{"numeric": [">=", 1]}], [1, 2, 10**400], [0.99999, -(10**400), MISSING]),
    ([{"numeric": ["<", 0]}], [-1], [0, MISSING]),
    ([{"numeric": ["<=", 0]}], [0], [0.00001]),
    ([{"numeric": [">", 0, "<=", 150]}], [1, 150], [0, 151, True]),
    ([{"cidr": "10.0.0.0/24"}], ["10.0.0.255"], ["10.0.1.0", "x", 1, MISSING]),
    ([{"cidr": "2001:db8::/32"}], ["2001:db8::1"], ["2001:db9::1", "10.0.0.1"]),
    ([{"exists": True}], ["", None, 0, []], [MISSING]),
    ([{"exists": False}], [MISSING], ["", None, 0]),
    (["a", {"prefix": "b"}, 3], ["a", "bb", 3], ["c", 4, MISSING]),
    ([{"prefix": "ab"}, {"prefix": "a"}, {"prefix": "c"}], ["a", "abc", "c"], ["bab", "", 1]),
    ([{"suffix": "ba"}, {"suffix": "a"}, {"suffix": "c"}], ["a", "ba", "c"], ["ab", "", 1]),
    ([{"equals-ignore-case": "A"}, {"equals-ignore-case": "b"}], ["a", "B"], ["c"]),
    (
        [{"numeric": [">", 1, "<", 3]}, {"numeric": [">=", 3, "<", 4]}, {"numeric": [">", 4, "<=", 5]}, {"numeric": ["<", -1]}],
        [1.5, 3, 3.9, 5, -2],
        [1, 4, 5.1, -1, 0],
    ),
    ([{"numeric": [">", 1, "<", 9]}, {"numeric": [">", 2, "<", 3]}, {"numeric": ["=", 9]}], [1.1, 5, 9], [1, 9.1]),
    (
        [{"cidr": "10.0.0.0/8"}, {"cidr": "10.1.0.0/16"}, {"cidr": "11.0.0.0/32"}, {"cidr": "::ffff:0:0/96"}],
        ["10.1.2.3", "10.255.255.255", "11.0.0.0", "::ffff:10.0.0.1"],
        ["11.0.0.1", "9.255.255.255", "::1", "1" * 5000],
    ),
    ([{"anything-but": "a"}, {"anything-but": "b"}], ["a", "b", 1], [None, MISSING]),
    ([{"anything-but": ["a", "b"]}, {"anything-but": ["b", "c"]}], ["a", "c", 1], ["b", None]),
    ([{"anything-but": ["ab", "b"]}, {"anything-but": {"prefix": "a"}}], ["b", "ac", 1], ["ab"]),
    ([{"anything-but": {"prefix": "a"}}, {"anything-but": {"prefix": "ab"}}], ["ac", "b"], ["ab", "abc"]),
    ([{"anything-but": {"prefix": "a"}}, {"anything-but": {"suffix": "z"}}], ["a", "z"], ["az"]),
    ([{"anything-but": {"prefix": "a"}}, {"anything-but": {"prefix": "b"}}], ["a", "b", ""], [MISSING]),
    ([{"anything-but": 1}, {"anything-but": [1, 2]}], [2, "1"], [1, 1.0]),
    ([{"anything-but": 1}, {"anything-but": "a"}], [1, "a", True], [None]),
    (["a", {"exists": False}], ["a", MISSING], ["b", []]),
    (["a"], [["b", ["c", ["a"]]]], [[["b"]], [[]]]),
    ([{"anything-but": "a"}], [[["b"]], [["a"], "b"]], [[["a"]]]),
]


@pytest.mark.parametrize("scope", [ATTRIBUTES, BODY])
@pytest.mark.parametrize(("conditions", "matching", "others"), OPERATORS, ids=lambda one: json.dumps(one, default=str)[:40])
def test_operators(conditions: list[Any], matching: list[Any], others: list[Any], scope: Scope) -> None:
    assert [value for value in matching if not matches(conditions, value, scope)] == []
    assert [value for value in others if matches(conditions, value, scope)] == []


@pytest.mark.parametrize(
    ("policy", "scope", "reason"),
    [
        ("{", ATTRIBUTES, "failed to parse JSON"),
        ('{"a": [NaN]}', ATTRIBUTES, "failed to parse JSON"),
        ("[]", ATTRIBUTES, "must be a JSON object"),
        ("{}", ATTRIBUTES, "at least one key"),
        ('{"a": "x"}', ATTRIBUTES, '"a" must be an object or an array'),
        ('{"a": []}', ATTRIBUTES, "Empty arrays are not allowed"),
        ('{"a": {"b": ["x"]}}', ATTRIBUTES, "does not support nested"),
        ('{"a": {}}', BODY, "at least one key"),
        ('{"a": [["x"]]}', BODY, "Match value must be"),
        ('{"a": [{"like": "x"}]}', ATTRIBUTES, "Unrecognized match type like"),
        ('{"a": [{"prefix": "x", "suffix": "y"}]}', ATTRIBUTES, "Only one key allowed"),
        ('{"a": [{"prefix": 1}]}', ATTRIBUTES, "prefix match pattern must be"),
        ('{"a": [{"prefix": ""}]}', ATTRIBUTES, "prefix match pattern must be"),
        ('{"a": [{"suffix": null}]}', ATTRIBUTES, "suffix match pattern must be"),
        ('{"a": [{"equals-ignore-case": 1}]}', ATTRIBUTES, "equals-ignore-case match pattern must be"),
        ('{"a": [{"exists": "yes"}]}', ATTRIBUTES, "exists match pattern must be either true or false"),
        ('{"a": [{"numeric": 1}]}', ATTRIBUTES, "Value of numeric must be an array"),
        ('{"a": [{"numeric": []}]}', ATTRIBUTES, "Invalid member in numeric match"),
        ('{"a": [{"numeric": ["=", "1"]}]}', ATTRIBUTES, "Value of = must be numeric"),
        ('{"a": [{"numeric": ["~", 1]}]}', ATTRIBUTES, "Unrecognized numeric range operator"),
        ('{"a": [{"numeric": [["x"], 1]}]}', ATTRIBUTES, "Unrecognized numeric range operator"),
        ('{"a": [{"numeric": [">", 1, ["x"], 2]}]}', ATTRIBUTES, "Bad numeric range operator"),
        ('{"a": [{"numeric": [">", 5, "<", 5]}]}', ATTRIBUTES, "Bottom must be less than top"),
        ('{"a": [{"numeric": ["<", 5, ">", 1]}]}', ATTRIBUTES, "Bad numeric range operator"),
        ('{"a": [{"numeric": [">", 1, "<", 2, "<", 3]}]}', ATTRIBUTES, "Too many elements"),
        ('{"a": [{"numeric": [">", 1000000001]}]}', ATTRIBUTES, "must be between"),
        ('{"a": [{"cidr": "10.0.0.0"}]}', ATTRIBUTES, "Malformed CIDR"),
        ('{"a": [{"cidr": "300.0.0.0/8"}]}', ATTRIBUTES, "Malformed CIDR"),
        ('{"a": [{"anything-but": []}]}', ATTRIBUTES, "anything-but must be"),
        ('{"a": [{"anything-but": [1, "a"]}]}', ATTRIBUTES, "mixed type is not supported"),
        ('{"a": [{"anything-but": {"exists": true}}]}', ATTRIBUTES, "Unsupported anything-but pattern"),
        (json.dumps({f"k{n}": ["x"] for n in range(6)}), ATTRIBUTES, "more than 5 keys"),
        (json.dumps({"a": ["x"] * 151}), ATTRIBUTES, "too complex"),
        (json.dumps({"a": ["x"] * 13, "b": ["x"] * 12}), ATTRIBUTES, "too complex"),
        (json.dumps({"$or": [{"a": ["x"], "b": ["y"]}] * 151}), ATTRIBUTES, "too complex"),
        (json.dumps({"$or": [{"a": ["x"]}, {"a": ["y"] * 50}], "b": ["x"] * 3}), ATTRIBUTES, "too complex"),
        (json.dumps({"a": {"b": {"c": ["x"] * 51}}}), BODY, "too complex"),
        (json.dumps({"a": ["x" * 262_144]}), ATTRIBUTES, "too large"),
    ],
)
def test_refused_policies(policy: str, scope: Scope, reason: str) -> None:
    with pytest.raises(FilterInvalid) as caught:
        FilterPolicy(policy, scope)
    assert reason in (caught.value.detail or "")


def test_limits_are_inclusive() -> None:
    FilterPolicy(json.dumps({"a": ["x"] * 15, "b": ["x"] * 10}), ATTRIBUTES)
    FilterPolicy(json.dumps({f"k{n}": ["x"] for n in range(5)}), ATTRIBUTES)
    FilterPolicy(json.dumps({"a": {"b": {"c": ["x"] * 50}}}), BODY)
    FilterPolicy(json.dumps({"$or": [{"a": ["x"]}, {"a": ["y"], "b": ["z"] * 49}], "c": ["x"] * 3}), ATTRIBUTES)


MANY: dict[str, tuple[list[Any], Any]] = {
    "texts": ([f"t{n}" for n in range(150)], "x"),
    "numbers": (list(range(150)), -1.5),
    "prefix": ([{"prefix": f"p{n:03}"} for n in range(150)], "p15"),
    "suffix": ([{"suffix": f"{n:03}s"} for n in range(150)], "15s"),
    "equals-ignore-case": ([{"equals-ignore-case": f"T{n}"} for n in range(150)], "x"),
    "numeric": ([{"numeric": [">", 2 * n, "<", 2 * n + 1]} for n in range(150)], 100.0),
    "cidr": ([{"cidr": f"10.0.{n}.0/25"} for n in range(150)], "10.0.75.200"),
    "anything-but": ([{"anything-but": ["x", f"t{n}"]} for n in range(150)], "x"),
}


@pytest.mark.parametrize("name", MANY)
def test_150_alternatives_are_decided_by_a_few_look_ups(name: str) -> None:
    """Counted are the calls of functions, which do not depend on the machine."""
    conditions, value = MANY[name]
    policy = FilterPolicy(json.dumps({"key": conditions}), ATTRIBUTES)
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = policy.matches(MISSING, {"key": value})
    finally:
        sys.setprofile(None)
    assert not found and calls <= 50, calls


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"a": [f"t{n}"], "b": ["x"]} for n in range(150)], {"a": "x", "b": "x"}),
        ([{"b": ["x"], "a": [f"t{n}"]} for n in range(150)], {"a": "t7", "b": "y"}),
        ([{"a": [{"prefix": f"p{n}"}], "b": ["x"]} for n in range(150)], {"a": "p7", "b": "y"}),
        ([{"a": [{"numeric": [">", n]}], "b": [f"t{n}", f"u{n}"]} for n in range(75)], {"a": 0.0, "b": "u7"}),
        ([{"a": [{"prefix": f"p{n:03}"}], "b": [{"suffix": "x"}]} for n in range(150)], {"a": "p15", "b": "x"}),
        ([{"a": [{"prefix": f"p{n:03}"}], "b": [{"suffix": f"{n:03}s"}]} for n in range(150)], {"a": "p015", "b": "016s"}),
        ([{"a": ["x"], f"b{n % 3}": [f"t{n}"]} for n in range(150)], {"a": "x", "b1": "t2"}),
    ],
)
def test_150_objects_are_not_tried_one_after_the_other(objects: list[dict[str, Any]], message: dict[str, Any]) -> None:
    policy, calls = FilterPolicy(json.dumps({"$or": objects}), ATTRIBUTES), 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = policy.matches(MISSING, message)
    finally:
        sys.setprofile(None)
    assert not found and calls <= 450, calls  # one after the other: more than 1,000


def test_an_array_matches_an_object_of_or() -> None:
    policy = FilterPolicy(json.dumps({"$or": [{"a": [f"t{n}"], "b": ["x"]} for n in range(9)]}), ATTRIBUTES)
    assert policy.matches(MISSING, {"a": ["x", "t7"], "b": "x"}) and not policy.matches(MISSING, {"a": ["x"], "b": "x"})


def test_keys_are_and_and_or_is_or() -> None:
    policy = FilterPolicy('{"a": ["1"], "$or": [{"b": ["2"]}, {"c": ["3"]}]}', ATTRIBUTES)
    assert policy.matches(MISSING, {"a": "1", "b": "2"}) and policy.matches(MISSING, {"a": "1", "c": "3"})
    assert not policy.matches(MISSING, {"a": "1"}) and not policy.matches(MISSING, {"b": "2", "c": "3"})


def test_keys_below_an_array_match_in_one_element() -> None:
    policy = FilterPolicy('{"items": {"kind": ["book"], "price": [{"numeric": ["<", 10]}]}}', BODY)
    assert policy.matches({"items": [{"kind": "pen", "price": 1}, {"kind": "book", "price": 5}]}, {})
    assert not policy.matches({"items": [{"kind": "pen", "price": 1}, {"kind": "book", "price": 50}]}, {})
    assert not policy.matches({"items": []}, {})
    assert not policy.matches({"items": "book"}, {})


@pytest.mark.parametrize("body", [MISSING, [], "x", 1, None])
def test_a_body_that_is_no_object_matches_nothing(body: Any) -> None:
    assert not FilterPolicy('{"a": [{"exists": false}]}', BODY).matches(body, {})


# A second implementation, which interprets the policy for each message.


def naive(policy: dict[str, Any], message: dict[str, Any]) -> bool:
    for key, condition in policy.items():
        if key == "$or" and len(condition) > 1 and all(isinstance(one, dict) for one in condition):
            if not any(naive(one, message) for one in condition):
                return False
        elif isinstance(condition, dict):
            value = message.get(key, MISSING)
            elements = value if isinstance(value, list) else [value]
            if not any(naive(condition, one if isinstance(one, dict) else {}) for one in elements):
                return False
        elif not any(naive_leaf(one, message.get(key, MISSING)) for one in condition):
            return False
    return True


def naive_leaf(condition: Any, value: Any) -> bool:
    if isinstance(condition, dict) and "exists" in condition:
        return bool((value is not MISSING) == condition["exists"])
    return any(naive_value(condition, one) for one in flattened(value))


def flattened(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [one for element in value for one in flattened(element)]


def naive_value(condition: Any, value: Any) -> bool:
    if value is MISSING:
        return False
    if not isinstance(condition, dict):
        if is_number(condition):
            return is_number(value) and round(value, 5) == round(condition, 5)
        return type(condition) is type(value) and condition == value
    [(name, operand)] = condition.items()
    if name == "anything-but":
        if value is None:
            return False
        if isinstance(operand, dict):
            return not naive_value(operand, value)
        return not any(naive_value(one, value) for one in (operand if isinstance(operand, list) else [operand]))
    if name == "numeric":
        pairs = [(operand[n], operand[n + 1]) for n in range(0, len(operand), 2)]
        return is_number(value) and all(compare(sign, round(value, 5), bound) for sign, bound in pairs)
    if not isinstance(value, str):
        return False
    if name == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(operand)
        except ValueError:
            return False
    results: dict[str, bool] = {
        "prefix": value.startswith(operand),
        "suffix": value.endswith(operand),
        "equals-ignore-case": value.lower() == operand.lower(),
    }
    return results[name]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(sign: str, value: float, bound: float) -> bool:
    return {"=": value == bound, ">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound}[sign]


_TEXT = st.sampled_from(["", "a", "ab", "abb", "B", "10.0.0.1", "10.1.0.1", "::1", "x"])
_NUMBER = st.sampled_from([-1, 0, 1, 1.5, 2])
_OPERATOR = st.one_of(
    st.sampled_from(["a", "ab", "x"]).flatmap(
        lambda text: st.sampled_from([{name: text} for name in ("prefix", "suffix", "equals-ignore-case")])
    ),
    st.booleans().map(lambda flag: {"exists": flag}),
    st.sampled_from([{"cidr": one} for one in ("10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "::/64", "0.0.0.0/0")]),
    st.lists(st.sampled_from(["a", "ab", "b"]), min_size=1, max_size=2).map(lambda values: {"anything-but": values}),
    st.lists(_NUMBER, min_size=1, max_size=2).map(lambda values: {"anything-but": values}),
    st.sampled_from(["a", "ab", "b", "bb"]).flatmap(
        lambda text: st.sampled_from([{"anything-but": {name: text}} for name in ("prefix", "suffix")])
    ),
    st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), _NUMBER).map(lambda pair: {"numeric": list(pair)}),
    st.tuples(
        st.sampled_from([">", ">="]), st.sampled_from([-1, 0]), st.sampled_from(["<", "<="]), st.sampled_from([1, 1.5, 2])
    ).map(lambda pairs: {"numeric": list(pairs)}),
)
_LEAF = st.lists(st.one_of(_TEXT, _NUMBER, st.booleans(), st.none(), _OPERATOR), min_size=1, max_size=4)
_KEYS = st.sampled_from(["k", "m"])
_FLAT = st.dictionaries(_KEYS, _LEAF, min_size=1, max_size=2)
_TEXTS = st.dictionaries(_KEYS, st.one_of(st.lists(_TEXT, min_size=1, max_size=3), _LEAF), min_size=1, max_size=2)
_POLICY = st.one_of(
    _FLAT,
    st.lists(_FLAT, min_size=2, max_size=2).map(lambda parts: {"$or": parts}),
    st.lists(_TEXTS, min_size=5, max_size=8).map(lambda parts: {"$or": parts}),
)
_NESTED = st.one_of(_POLICY, st.dictionaries(_KEYS, _POLICY, min_size=1, max_size=1))
_SCALAR = st.one_of(_TEXT, _NUMBER, st.booleans(), st.none(), st.sampled_from([1.000001, -0.999999, 10**400]))
_VALUE = st.one_of(_SCALAR, st.lists(st.one_of(_SCALAR, st.lists(_SCALAR, max_size=2)), max_size=2))
_OBJECT = st.dictionaries(_KEYS, _VALUE, max_size=2)
_BODY_VALUE = st.dictionaries(_KEYS, st.one_of(_VALUE, _OBJECT, st.lists(_OBJECT, max_size=2)), max_size=2)


@given(_POLICY, _OBJECT)
def test_the_attribute_scope_equals_the_naive_implementation(policy: dict[str, Any], attributes: dict[str, Any]) -> None:
    """The values are those that attributes have as filters see them: see `filter_values`."""
    assert FilterPolicy(json.dumps(policy), ATTRIBUTES).matches(MISSING, attributes) == naive(policy, attributes)


@given(_NESTED, _BODY_VALUE)
def test_the_body_scope_equals_the_naive_implementation(policy: dict[str, Any], body: dict[str, Any]) -> None:
    try:
        compiled = FilterPolicy(json.dumps(policy), BODY)
    except FilterInvalid as refused:
        assert refused.detail == "Filter policy is too complex"
        assume(False)
    assert compiled.matches(body, {}) == naive(policy, body)
