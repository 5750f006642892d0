"""The alternatives of one key of a filter policy, of which one must match, compiled to look-ups. Pure.

However many there are, a value is decided by one look-up of each kind: in a set of texts or numbers, in sorted ranges of numbers
or addresses, by one comparison with all prefixes or suffixes.
"""

import ipaddress
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroad.subscriptions.value_tests import MISSING, Test, any_test

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Bound = tuple[float, int]  # a place on the line of numbers: at the number (0), just below it (-1), or just above it (1)
_ADDRESS_CHARS_MAX = 100
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from one bound to another, both included."""

    low: Bound = (-math.inf, 0)
    high: Bound = (math.inf, 0)


@dataclass(slots=True)
class Exclusion:
    """The values of one `anything-but`: texts, numbers, or texts that begin or end so."""

    texts: frozenset[str] | None = None
    numbers: frozenset[float] | None = None
    prefix: str = ""
    suffix: str = ""


@dataclass(slots=True)
class Alternatives:
    """`presence`: operands of `exists`."""

    presence: set[bool] = field(default_factory=set)
    literals: list[bool | None] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    lowered: set[str] = field(default_factory=set)
    prefixes: list[str] = field(default_factory=list)
    suffixes: list[str] = field(default_factory=list)
    numbers: set[float] = field(default_factory=set)
    ranges: list[Range] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)

    def compile(self) -> Test:
        """A test of the value of the key. Of an array one element must match; arrays within it are part of it."""
        matches_missing, matches_any, one = False in self.presence, True in self.presence, self._scalar_test()

        def test(found: Any) -> bool:
            if found is MISSING:
                return matches_missing
            if isinstance(found, list):
                return matches_any or any(one(element) for element in _elements(found))
            return matches_any or one(found)

        return test

    def _scalar_test(self) -> Test:
        excluded = _excluded_by_all(self.exclusions) if self.exclusions else None
        text, number = any_test(self._text_tests(excluded)), any_test(self._number_tests(excluded))
        has_null, has_other = None in self.literals, excluded is not None
        booleans = {one for one in self.literals if one is not None}

        def test(found: Any) -> bool:
            if isinstance(found, str):
                return text(found)
            if found is None:
                return has_null
            if isinstance(found, bool):
                return has_other or found in booleans
            if isinstance(found, int):
                return number(found)
            if isinstance(found, float) and math.isfinite(found):
                return number(rounded(found))
            return has_other  # an object, or bytes

        return test

    def _text_tests(self, excluded: Test | None) -> list[Test]:
        tests: list[Test] = []
        if self.texts:
            tests.append(frozenset(self.texts).__contains__)
        if self.prefixes:
            prefixes = _shortest(self.prefixes)
            tests.append(lambda found: found.startswith(prefixes))
        if self.suffixes:
            suffixes = tuple(one[::-1] for one in _shortest([one[::-1] for one in self.suffixes]))
            tests.append(lambda found: found.endswith(suffixes))
        if self.lowered:
            lowered = frozenset(self.lowered)
            tests.append(lambda found: found.lower() in lowered)
        if self.networks:
            tests.append(_address_test(self.networks))
        if excluded is not None:
            tests.append(lambda found: not excluded(found))
        return tests

    def _number_tests(self, excluded: Test | None) -> list[Test]:
        tests: list[Test] = []
        if self.numbers:
            tests.append(frozenset(self.numbers).__contains__)
        if self.ranges:
            tests.append(_range_test([(one.low, one.high) for one in self.ranges], lambda found: (found, 0)))
        if excluded is not None:
            tests.append(lambda found: not excluded(found))
        return tests


def rounded(number: float) -> float:
    """Numbers are compared to five decimals."""
    return round(number, _DIGITS)


def _elements(found: list[Any]) -> Iterator[Any]:
    """The elements of an array and of the arrays in it, in order."""
    waiting = [iter(found)]
    while waiting:
        for one in waiting[-1]:
            if isinstance(one, list):
                waiting.append(iter(one))
                break
            yield one
        else:
            waiting.pop()


def _shortest(texts: Sequence[str]) -> tuple[str, ...]:
    """Without those that begin with another one."""
    kept: list[str] = []
    for one in sorted(set(texts)):
        if not kept or not one.startswith(kept[-1]):
            kept.append(one)
    return tuple(kept)


def _merged(ranges: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """The lower and the upper bounds of the ranges without overlaps, in order."""
    lows: list[Any] = []
    highs: list[Any] = []
    for low, high in sorted(ranges):
        if highs and low <= highs[-1]:
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return lows, highs


def _range_test(ranges: list[tuple[Any, Any]], place: Callable[[Any], Any]) -> Test:
    lows, highs = _merged(ranges)

    def test(found: Any) -> bool:
        at = place(found)
        index = bisect_right(lows, at) - 1
        return index >= 0 and bool(at <= highs[index])

    return test


def _address_test(networks: Sequence[Network]) -> Test:
    by_version = {
        version: _range_test(
            [(int(one.network_address), int(one.broadcast_address)) for one in networks if one.version == version], int
        )
        for version in (4, 6)
    }

    def test(found: Any) -> bool:
        if len(found) > _ADDRESS_CHARS_MAX:
            return False
        try:
            address = ipaddress.ip_address(found)
        except ValueError:
            return False
        return by_version[address.version](address)

    return test


def _excluded_by_all(exclusions: Sequence[Exclusion]) -> Test:
    """True for a value that every `anything-but` excludes, so that none of them matches it."""
    numbers = [one.numbers for one in exclusions if one.numbers is not None]
    if numbers:
        common = frozenset.intersection(*numbers) if len(numbers) == len(exclusions) else frozenset()
        return lambda found: not isinstance(found, str) and found in common
    prefix, suffix = max((one.prefix for one in exclusions), key=len), max((one.suffix for one in exclusions), key=len)
    if not all(prefix.startswith(one.prefix) and suffix.endswith(one.suffix) for one in exclusions):
        return lambda _found: False  # no text has two prefixes of which none is the start of the other
    texts = [one.texts for one in exclusions if one.texts is not None]
    if texts:
        known = frozenset(one for one in frozenset.intersection(*texts) if one.startswith(prefix) and one.endswith(suffix))
        return lambda found: isinstance(found, str) and found in known
    return lambda found: isinstance(found, str) and found.startswith(prefix) and found.endswith(suffix)
