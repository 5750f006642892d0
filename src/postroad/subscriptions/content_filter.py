"""Content filters: conditions on the payload and the headers of a message, compiled once. Pure.

    {"payload": {"order.amount": {"gte": 100}, "country": ["DE", "AT"]}, "headers": {"x-source": {"prefix": "shop-"}},
     "or": [{"payload": {"vip": true}}, {"payload": {"gift": true}}]}

All parts must hold; of `or`, one. A condition is a value (equal), a list of conditions (any of them) or an object of operators
(all of them). Paths of the payload are names separated by dots. If a value is an array, one of its elements must satisfy the
condition. A value that is missing, as every value is in a body that is not JSON, satisfies only `{"exists": false}` and the
negation of a condition that it does not satisfy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.api.subscriptions import FilterInvalid
from postroad.subscriptions.value_tests import (
    MISSING,
    Matcher,
    Test,
    all_matchers,
    all_tests,
    any_matcher,
    any_test,
    compares,
    equals,
    exists,
    of_elements,
    prefix,
    suffix,
)

CONDITIONS_MAX = 32
DEPTH_MAX = 4
PATH_CHARS_MAX = 256
TEXT_CHARS_MAX = 1024
_OPERATORS = ("equals", "prefix", "suffix", "gt", "gte", "lt", "lte", "exists", "not")
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class ContentFilter:
    """A compiled filter. Raises FilterInvalid if the definition is invalid."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        compiler = _Compiler()
        self._matches = compiler.filter(definition, "$", 0)
        self.needs_payload = compiler.needs_payload

    def matches(self, payload: Any, headers: Mapping[str, str]) -> bool:
        """`payload` is decoded JSON, or `MISSING` if the body is none; names of `headers` are in lower case."""
        return self._matches(payload, headers)


class _Compiler:
    def __init__(self) -> None:
        self._conditions = 0
        self.needs_payload = False

    def filter(self, definition: Any, path: str, depth: int) -> Matcher:
        if not isinstance(definition, Mapping):
            raise FilterInvalid(f"expected an object at {path}")
        if depth > DEPTH_MAX:
            raise FilterInvalid(f"filters are nested deeper than {DEPTH_MAX} at {path}")
        parts: list[Matcher] = []
        for name, part in definition.items():
            if name == "payload":
                self.needs_payload = True
                parts += [self._payload_part(field, test) for field, test in self._fields(part, f"{path}.payload", depth)]
            elif name == "headers":
                parts += [_header_part(field, test) for field, test in self._fields(part, f"{path}.headers", depth)]
            elif name == "or":
                parts.append(self._any_filter(part, f"{path}.or", depth))
            else:
                raise FilterInvalid(f"unknown part {name[:64]!r} at {path}; expected payload, headers or or")
        if not parts:
            raise FilterInvalid(f"the filter at {path} has no conditions")
        return all_matchers(parts)

    def _fields(self, part: Any, path: str, depth: int) -> list[tuple[str, Test]]:
        if not isinstance(part, Mapping) or not part:
            raise FilterInvalid(f"expected an object of conditions at {path}")
        fields = []
        for field, condition in part.items():
            if not field or len(field) > PATH_CHARS_MAX or "" in field.split("."):
                raise FilterInvalid(f"expected names separated by dots, at most {PATH_CHARS_MAX} characters, at {path}")
            fields.append((field, self._condition(condition, f"{path}.{field}", depth)))
        return fields

    def _any_filter(self, part: Any, path: str, depth: int) -> Matcher:
        if not isinstance(part, Sequence) or isinstance(part, str) or not part:
            raise FilterInvalid(f"expected a list of filters at {path}")
        return any_matcher([self.filter(one, f"{path}[{index}]", depth + 1) for index, one in enumerate(part)])

    def _payload_part(self, field: str, test: Test) -> Matcher:
        names = tuple(field.split("."))
        return lambda payload, _headers: test(_value_at(payload, names))

    def _condition(self, condition: Any, path: str, depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise FilterInvalid(f"conditions are nested deeper than {DEPTH_MAX} at {path}")
        if isinstance(condition, Mapping):
            if not condition:
                raise FilterInvalid(f"the condition at {path} is empty")
            return all_tests([self._operator(name, value, path, depth) for name, value in condition.items()])
        if isinstance(condition, list):
            if not condition:
                raise FilterInvalid(f"the list at {path} is empty")
            return any_test([self._condition(one, f"{path}[{index}]", depth + 1) for index, one in enumerate(condition)])
        return of_elements(self._count(equals(_scalar(condition, path)), path))

    def _operator(self, name: str, value: Any, path: str, depth: int) -> Test:
        path = f"{path}.{name}"
        if name == "not":
            test = self._condition(value, path, depth + 1)
            return lambda found: not test(found)
        if name == "exists":
            if not isinstance(value, bool):
                raise FilterInvalid(f"expected true or false at {path}")
            return self._count(exists(value), path)
        if name == "equals":
            test = equals(_scalar(value, path))
        elif name in ("prefix", "suffix"):
            test = (prefix if name == "prefix" else suffix)(_text(value, path))
        elif name in _COMPARISONS:
            test = _comparison(_COMPARISONS[name], _number(value, path))
        else:
            raise FilterInvalid(f"unknown operator at {path[:200]}; expected one of {', '.join(_OPERATORS)}")
        return of_elements(self._count(test, path))

    def _count(self, test: Test, path: str) -> Test:
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise FilterInvalid(f"the filter has more than {CONDITIONS_MAX} conditions, from {path} on")
        return test


def _header_part(field: str, test: Test) -> Matcher:
    name = field.lower()
    return lambda _payload, headers: test(headers.get(name, MISSING))


def _value_at(payload: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if not isinstance(payload, dict) or name not in payload:
            return MISSING
        payload = payload[name]
    return payload


def _comparison(name: str, bound: float) -> Test:
    test = compares(name, bound)

    def with_headers(found: Any) -> bool:
        if isinstance(found, str):  # a header
            try:
                found = float(found)
            except ValueError:
                return False
        return test(found)

    return with_headers


def _scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(value, path)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise FilterInvalid(f"expected a text of at most {TEXT_CHARS_MAX} characters at {path}")
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FilterInvalid(f"expected a number at {path}")
    return value
