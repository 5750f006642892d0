"""One test over many values that reports every failure, where a test per value would add hundreds of items."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def for_each(values: Iterable[T], name: Callable[[T], str] = str) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Call the test with each value. Raises all failures together, each with the name of its value."""
    found = list(values)
    assert found

    def decorate(test: Callable[[T], None]) -> Callable[[], None]:
        def test_each() -> None:
            failures = [failure for value in found if (failure := _failure(test, value, name))]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(found)} failed", failures)

        test_each.__name__, test_each.__doc__ = test.__name__, test.__doc__
        return test_each

    return decorate


def _failure(test: Callable[[T], None], value: T, name: Callable[[T], str]) -> Exception | None:
    try:
        test(value)
    except Exception as failed:
        failed.add_note(f"for {name(value)}")
        return failed
    return None
