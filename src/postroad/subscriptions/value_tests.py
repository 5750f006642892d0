"""Tests of one value of a message, which content filters and filter policies are compiled to. Pure.

A test gets a decoded JSON value, or `MISSING`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


class _Missing:
    """A value that a message does not have."""


MISSING: Final = _Missing()

Test = Callable[[Any], bool]
Matcher = Callable[[Any, Mapping[str, Any]], bool]  # of a decoded payload, or MISSING, and headers or attributes by name


def all_matchers(parts: Sequence[Matcher]) -> Matcher:
    if len(parts) == 1:
        return parts[0]
    return lambda payload, fields: all(part(payload, fields) for part in parts)


def any_matcher(parts: Sequence[Matcher]) -> Matcher:
    if len(parts) == 1:
        return parts[0]
    return lambda payload, fields: any(part(payload, fields) for part in parts)


def all_tests(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def test_all(found: Any) -> bool:
        for test in tests:  # noqa: SIM110  # a generator would cost more than most tests
            if not test(found):
                return False
        return True

    return test_all


def any_test(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def test_any(found: Any) -> bool:
        for test in tests:  # noqa: SIM110  # see above
            if test(found):
                return True
        return False

    return test_any


def of_elements(test: Test) -> Test:
    """Of an array, one element must pass."""
    return lambda found: any(test(one) for one in found) if isinstance(found, list) else test(found)


def exists(wanted: bool) -> Test:
    return lambda found: (found is not MISSING) is wanted


def equals(wanted: Any) -> Test:
    """JSON equality: 1 equals 1.0, but neither equals true."""
    is_boolean = isinstance(wanted, bool)
    return lambda found: found is not MISSING and isinstance(found, bool) == is_boolean and bool(found == wanted)


def prefix(wanted: str) -> Test:
    return lambda found: isinstance(found, str) and found.startswith(wanted)


def suffix(wanted: str) -> Test:
    return lambda found: isinstance(found, str) and found.endswith(wanted)


def compares(name: str, bound: float) -> Test:
    """A comparison of numbers: `=`, `>`, `>=`, `<` or `<=`."""
    compare: Callable[[float], bool] = {
        "=": lambda found: found == bound,
        ">": lambda found: found > bound,
        ">=": lambda found: found >= bound,
        "<": lambda found: found < bound,
        "<=": lambda found: found <= bound,
    }[name]

    def test(found: Any) -> bool:
        return isinstance(found, int | float) and not isinstance(found, bool) and compare(found)

    return test


def number_of(text: str) -> float | None:
    """The number that a text is; None if it is none."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
