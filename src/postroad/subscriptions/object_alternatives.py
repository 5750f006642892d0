"""The objects of `$or` in a filter policy, of which one must match. Pure.

They are halved until few are left. Before the objects of a half are tried, the values of the keys that all of them have are
compared with the conditions of all of them together, which costs a few look-ups, however many they are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postroad.subscriptions.value_tests import MISSING, Test, all_tests, any_test

_FEW = 4  # objects that are tried one after the other


def any_object(objects: Sequence[tuple[Mapping[str, Any], Test]], compile_conditions: Callable[[list[Any]], Test]) -> Test:
    """The test of `$or`, from each object with its test. `compile_conditions` makes the test of a key from its conditions."""
    ordered = sorted(objects, key=lambda one: sorted(one[0]))  # those with the same keys together
    return _halved([(_conditions(one), test) for one, test in ordered], compile_conditions)


def _halved(objects: Sequence[tuple[Mapping[str, list[Any]], Test]], compile_conditions: Callable[[list[Any]], Test]) -> Test:
    if len(objects) <= _FEW:
        return any_test([test for _, test in objects])
    common = set.intersection(*(set(one) for one, _ in objects))
    gates = [
        _at(name, compile_conditions([condition for one, _ in objects for condition in one[name]])) for name in sorted(common)
    ]
    middle = len(objects) // 2
    halves = any_test([_halved(objects[:middle], compile_conditions), _halved(objects[middle:], compile_conditions)])
    return all_tests([*gates, halves])


def _conditions(one: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The conditions of each key that has a value. An inner `$or` is no key, or one that is left out."""
    return {name: condition for name, condition in one.items() if isinstance(condition, list) and name != "$or"}


def _at(name: str, test: Test) -> Test:
    return lambda found: test(found.get(name, MISSING))
