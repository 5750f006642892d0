"""Content filters: operators, combinations, errors."""

from typing import Any

import pytest

from postroad.api.subscriptions import FilterInvalid
from postroad.subscriptions.content_filter import CONDITIONS_MAX, ContentFilter
from postroad.subscriptions.value_tests import MISSING

ORDER = {"amount": 120, "country": "DE", "tags": ["new", "gift"], "vip": True, "note": None, "item": {"sku": "A-17"}}
HEADERS = {"x-source": "shop-1", "x-weight": "12.5"}


def matches(definition: dict[str, Any], payload: Any = None, headers: dict[str, str] | None = None) -> bool:
    found = ORDER if payload is None else payload
    return ContentFilter(definition).matches(found, HEADERS if headers is None else headers)


@pytest.mark.parametrize(
    "condition, expected",
    [
        ({"amount": 120}, True),
        ({"amount": 120.0}, True),
        ({"amount": "120"}, False),
        ({"amount": {"gte": 120}}, True),
        ({"amount": {"gt": 120}}, False),
        ({"amount": {"gte": 100, "lt": 121}}, True),
        ({"amount": {"lte": 119}}, False),
        ({"amount": {"equals": 120}}, True),
        ({"country": ["AT", "DE"]}, True),
        ({"country": ["AT", {"prefix": "C"}]}, False),
        ({"country": {"prefix": "D"}}, True),
        ({"country": {"suffix": "D"}}, False),
        ({"item.sku": {"suffix": "-17"}}, True),
        ({"item.missing": "x"}, False),
        ({"tags": "gift"}, True),
        ({"tags": {"not": "gift"}}, False),
        ({"tags": {"not": "old"}}, True),
        ({"vip": True}, True),
        ({"vip": 1}, False),
        ({"amount": True}, False),
        ({"note": None}, True),
        ({"note": {"exists": True}}, True),
        ({"unknown": {"exists": False}}, True),
        ({"unknown": {"exists": True}}, False),
        ({"unknown": None}, False),
        ({"unknown": {"not": "x"}}, True),
        ({"unknown": {"not": {"exists": False}}}, False),
        ({"country": {"gt": 1}}, False),
        ({"amount": 120, "country": "AT"}, False),
    ],
)
def test_conditions_on_the_payload(condition: dict[str, Any], expected: bool) -> None:
    assert matches({"payload": condition}) is expected


@pytest.mark.parametrize(
    "condition, expected",
    [
        ({"X-Source": {"prefix": "shop-"}}, True),
        ({"x-source": "shop-2"}, False),
        ({"x-weight": {"gt": 12}}, True),
        ({"x-source": {"gt": 1}}, False),
        ({"x-other": {"exists": False}}, True),
    ],
)
def test_conditions_on_headers_ignore_the_case_of_names(condition: dict[str, Any], expected: bool) -> None:
    assert matches({"headers": condition}) is expected


def test_all_parts_hold_and_one_of_or() -> None:
    either = [{"payload": {"country": "AT"}}, {"payload": {"vip": True}}]
    assert matches({"payload": {"amount": {"gte": 100}}, "or": either})
    assert not matches({"payload": {"amount": {"gte": 500}}, "or": either})
    assert not matches({"or": [{"payload": {"country": "AT"}}, {"headers": {"x-source": "none"}}]})


def test_a_body_that_is_not_json_has_no_values() -> None:
    assert not matches({"payload": {"amount": 1}}, MISSING)
    assert matches({"payload": {"amount": {"exists": False}}}, MISSING)
    assert not matches({"payload": {"amount": 1}}, [1, 2])


@pytest.mark.parametrize(
    "definition, path",
    [
        ({}, "$"),
        ({"payload": {}}, "$.payload"),
        ({"payload": {"a..b": 1}}, "$.payload"),
        ({"payload": {"a": {}}}, "$.payload.a"),
        ({"payload": {"a": []}}, "$.payload.a"),
        ({"payload": {"a": {"gte": "1"}}}, "$.payload.a.gte"),
        ({"payload": {"a": {"gte": True}}}, "$.payload.a.gte"),
        ({"payload": {"a": {"prefix": 1}}}, "$.payload.a.prefix"),
        ({"payload": {"a": {"exists": 1}}}, "$.payload.a.exists"),
        ({"payload": {"a": [1, {"near": 2}]}}, "$.payload.a[1].near"),
        ({"headers": ["x"]}, "$.headers"),
        ({"or": []}, "$.or"),
        ({"or": [{"body": 1}]}, "$.or[0]"),
        ({"payload": {"a": {"not": {"not": {"not": {"not": {"not": 1}}}}}}}, "$.payload.a.not"),
        ({"payload": {"a": list(range(CONDITIONS_MAX + 1))}}, "$.payload.a"),
        ({"payload": {"a": "x" * 2000}}, "$.payload.a"),
    ],
)
def test_an_invalid_filter_names_the_path(definition: dict[str, Any], path: str) -> None:
    with pytest.raises(FilterInvalid) as caught:
        ContentFilter(definition)
    assert path in (caught.value.detail or "")


def test_only_filters_on_the_payload_need_it() -> None:
    assert ContentFilter({"or": [{"payload": {"a": 1}}]}).needs_payload
    assert not ContentFilter({"headers": {"a": "1"}}).needs_payload
