"""Filter policies of Amazon SNS: conditions on the attributes or the body of a message, compiled once. Pure.

    {"store": ["shop-1", {"prefix": "outlet-"}], "price": [{"numeric": [">", 0, "<=", 150]}], "$or": [{…}, {…}]}

All keys must hold; of the conditions of a key, and of `$or`, one. In the scope `MessageBody` keys may be nested. Of an array,
one element must match, and all keys below an array must match in the same element, as in Amazon's Event Ruler; arrays within an
array are part of it. A missing value matches only `{"exists": false}`. Numbers are compared to five decimals.
"""

import ipaddress
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from postroad.api.subscriptions import FilterInvalid
from postroad.subscriptions.alternatives import Alternatives, Exclusion, Range, rounded
from postroad.subscriptions.object_alternatives import any_object
from postroad.subscriptions.value_tests import MISSING, Matcher, Test, all_tests, of_elements

Scope = Literal["MessageAttributes", "MessageBody"]
KEYS_MAX = 5
COMBINATIONS_MAX = 150
BYTES_MAX = 262_144
NUMBER_MAX = 1_000_000_000
_DEPTH_MAX = 32
_OR = "$or"
_BOUNDS = {"<": -1, "<=": 0, ">": 1, ">=": 0}  # where a range begins or ends: below the number, at it, above it
_LOWER, _UPPER = {">", ">="}, {"<", "<="}


class FilterPolicy:
    """A compiled policy. Raises FilterInvalid, with the reason in the words of SNS, if the text is invalid."""

    def __init__(self, text: str, scope: Scope) -> None:
        compiler = _Compiler(scope)
        policy = _parse(text)
        test = compiler.object(policy, 1)
        compiler.check_limits()
        self.needs_payload = scope == "MessageBody"
        self._matches: Matcher = _body_matcher(test) if self.needs_payload else lambda _payload, fields: test(fields)

    def matches(self, payload: Any, attributes: Mapping[str, Any]) -> bool:
        """`payload` is decoded JSON, or `MISSING`; `attributes` has texts, numbers, and lists for arrays."""
        return self._matches(payload, attributes)


def _body_matcher(test: Test) -> Matcher:
    return lambda payload, _fields: isinstance(payload, dict) and test(payload)


def _parse(text: str) -> Mapping[str, Any]:
    if len(text.encode()) > BYTES_MAX:
        _refuse("Filter policy is too large")
    try:
        policy = json.loads(text, parse_constant=lambda _name: _refuse("failed to parse JSON."))
    except (ValueError, RecursionError) as exc:
        raise FilterInvalid("failed to parse JSON.") from exc
    if not isinstance(policy, dict):
        _refuse("Filter policy must be a JSON object")
    return policy


class _Compiler:
    """Counts the keys, and the combinations of values: those of a key, times its depth, multiplied over all keys; those of the
    objects of `$or` are added up."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keys: set[tuple[str, ...]] = set()
        self._combinations = 1
        self._path: list[str] = []

    def check_limits(self) -> None:
        if len(self._keys) > KEYS_MAX:
            _refuse(f"Filter policy can not have more than {KEYS_MAX} keys")
        if self._combinations > COMBINATIONS_MAX:
            _refuse("Filter policy is too complex")

    def object(self, policy: Mapping[str, Any], depth: int) -> Test:
        """The test of an object, of which every key must match."""
        if not policy:
            _refuse("Filter policy must have at least one key")
        if depth > _DEPTH_MAX:
            _refuse("Filter policy is too complex")
        return all_tests([self._key(name, condition, depth) for name, condition in policy.items()])

    def _key(self, name: str, condition: Any, depth: int) -> Test:
        if name == _OR and _is_or(condition):
            return self._any_object(condition, depth)
        self._path.append(name)
        try:
            if isinstance(condition, list):
                return _at(name, self._leaf(condition, depth))
            if not isinstance(condition, dict):
                _refuse(f'"{name[:100]}" must be an object or an array')
            if self._scope == "MessageAttributes":
                _refuse("Filter policy scope MessageAttributes does not support nested filter policy")
            return _at(name, of_elements(_of_objects(self.object(condition, depth + 1))))
        finally:
            self._path.pop()

    def _any_object(self, objects: list[dict[str, Any]], depth: int) -> Test:
        """The test of `$or`. Objects with the same single key are one object with the conditions of all."""
        before, total = self._combinations, 0
        tests: list[tuple[dict[str, Any], Test]] = []
        for one in _joined(objects):
            self._combinations = 1
            tests.append((one, self.object(one, depth)))
            total += self._combinations
        self._combinations = before * total
        return any_object(tests, _alternatives)

    def _leaf(self, conditions: list[Any], depth: int) -> Test:
        if not conditions:
            _refuse("Empty arrays are not allowed")
        self._keys.add(tuple(self._path))
        self._combinations *= len(conditions) * (depth if self._scope == "MessageBody" else 1)
        return _alternatives(conditions)


def _alternatives(conditions: list[Any]) -> Test:
    """The test of the value of a key, of whose conditions one must match."""
    found = Alternatives()
    for one in conditions:
        _add(one, found)
    return found.compile()


def _is_or(condition: Any) -> bool:
    """True for the operator: two or more objects, as in Event Ruler. Otherwise `$or` is the name of a key."""
    return isinstance(condition, list) and len(condition) > 1 and all(isinstance(one, dict) and one for one in condition)


def _at(name: str, test: Test) -> Test:
    return lambda found: test(found.get(name, MISSING))


def _of_objects(test: Test) -> Test:
    """Of anything but an object, no key exists."""
    return lambda found: test(found if isinstance(found, dict) else {})


def _joined(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lists: dict[str, list[Any]] = {}
    others: list[dict[str, Any]] = []
    for one in objects:
        [(name, condition), *more] = one.items()
        if more or not isinstance(condition, list) or not condition or name == _OR:
            others.append(one)
        else:
            lists.setdefault(name, []).extend(condition)
    return [*({name: conditions} for name, conditions in lists.items()), *others]


def _add(given: Any, into: Alternatives) -> None:
    """Add a condition to the alternatives of its key. Raises FilterInvalid."""
    if isinstance(given, str):
        into.texts.add(given)
    elif given is None or isinstance(given, bool):
        into.literals.append(given)
    elif isinstance(given, int | float):
        into.numbers.add(_number(given, "="))
    elif not isinstance(given, dict):
        _refuse("Match value must be String, number, true, false, or null")
    elif len(given) != 1:
        _refuse("Only one key allowed in match expression")
    else:
        [(name, operand)] = given.items()
        add = _OPERATORS.get(name)
        if add is None:
            _refuse(f"Unrecognized match type {name[:100]}")
        add(operand, into)


def _number(given: Any, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        _refuse(f"Value of {name} must be numeric")
    if not -NUMBER_MAX <= given <= NUMBER_MAX:
        _refuse(f"Value of {name} must be between {-NUMBER_MAX} and {NUMBER_MAX}, inclusive")
    return rounded(given)


# Operators


def _exists(operand: Any, into: Alternatives) -> None:
    if not isinstance(operand, bool):
        _refuse("exists match pattern must be either true or false.")
    into.presence.add(operand)


def _text(name: str, operand: Any) -> str:
    if not isinstance(operand, str) or not operand:
        _refuse(f"{name} match pattern must be a non-empty string")
    return operand


def _numeric_range(operand: Any, into: Alternatives) -> None:
    if not isinstance(operand, list):
        _refuse("Value of numeric must be an array.")
    if not operand:
        _refuse("Invalid member in numeric match: ]")
    if len(operand) not in (2, 4):
        _refuse("Too many elements in numeric expression" if len(operand) > 4 else "Value of numeric must be a pair or two pairs")
    name, bound = operand[0], _number(operand[1], str(operand[0])[:10])
    if name == "=" and len(operand) == 2:
        into.numbers.add(bound)
        return
    if not isinstance(name, str) or name not in _BOUNDS:
        _refuse(f"Unrecognized numeric range operator: {str(name)[:20]}")
    if len(operand) == 2:
        into.ranges.append(Range(low=(bound, _BOUNDS[name])) if name in _LOWER else Range(high=(bound, _BOUNDS[name])))
        return
    second, other = operand[2], _number(operand[3], str(operand[2])[:10])
    if name not in _LOWER or not isinstance(second, str) or second not in _UPPER:
        _refuse(f"Bad numeric range operator: {str(second if name in _LOWER else name)[:20]}")
    if bound >= other:
        _refuse("Bottom must be less than top")
    into.ranges.append(Range((bound, _BOUNDS[name]), (other, _BOUNDS[second])))


def _network(operand: Any, into: Alternatives) -> None:
    try:
        if not isinstance(operand, str) or "/" not in operand:
            raise ValueError
        into.networks.append(ipaddress.ip_network(operand, strict=False))
    except ValueError as exc:
        raise FilterInvalid(f"Malformed CIDR, one '/' required: {str(operand)[:60]}") from exc


def _anything_but(operand: Any, into: Alternatives) -> None:
    """Any value that exists, except these. Of an array, one element must be another."""
    if isinstance(operand, dict):
        if len(operand) != 1 or next(iter(operand)) not in ("prefix", "suffix"):
            _refuse("Unsupported anything-but pattern: expected prefix or suffix")
        [(name, given)] = operand.items()
        wanted = _text(name, given)
        into.exclusions.append(Exclusion(prefix=wanted) if name == "prefix" else Exclusion(suffix=wanted))
        return
    values = operand if isinstance(operand, list) else [operand]
    if not values or any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in values):
        _refuse("Value of anything-but must be an array or single string/number value.")
    if len({isinstance(one, str) for one in values}) > 1:
        _refuse("Inside anything-but list, either all values are number or string, mixed type is not supported")
    if isinstance(values[0], str):
        into.exclusions.append(Exclusion(texts=frozenset(values)))
    else:
        into.exclusions.append(Exclusion(numbers=frozenset(_number(one, "=") for one in values)))


_OPERATORS: dict[str, Callable[[Any, Alternatives], None]] = {
    "exists": _exists,
    "prefix": lambda operand, into: into.prefixes.append(_text("prefix", operand)),
    "suffix": lambda operand, into: into.suffixes.append(_text("suffix", operand)),
    "equals-ignore-case": lambda operand, into: into.lowered.add(_text("equals-ignore-case", operand).lower()),
    "numeric": _numeric_range,
    "cidr": _network,
    "anything-but": _anything_but,
}


def _refuse(reason: str) -> NoReturn:
    raise FilterInvalid(reason)
