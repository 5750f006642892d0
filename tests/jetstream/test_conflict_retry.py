import pytest

from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.kernel.errors import Conflict, EngineUnavailable, Overloaded


class Counter:
    """Fails with the given errors, one per call, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.calls = 0

    @retry_on_conflict("the counter", attempts=3)
    async def add(self, amount: int, *, factor: int = 1) -> int:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return amount * factor


@pytest.mark.parametrize("conflicts", [0, 1, 2])
async def test_an_operation_is_repeated_with_its_arguments_until_it_meets_no_conflict(conflicts: int) -> None:
    counter = Counter(*[Conflict()] * conflicts)
    assert await counter.add(2, factor=3) == 6
    assert counter.calls == conflicts + 1


async def test_an_operation_that_always_meets_a_conflict_is_overloaded() -> None:
    counter = Counter(*[Conflict()] * 3)
    with pytest.raises(Overloaded, match="too many concurrent changes of the counter") as caught:
        await counter.add(1)
    assert counter.calls == 3 and caught.value.retry_after


async def test_other_errors_are_raised_at_once() -> None:
    counter = Counter(EngineUnavailable())
    with pytest.raises(EngineUnavailable):
        await counter.add(1)
    assert counter.calls == 1
