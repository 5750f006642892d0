"""An operator's authorization, as POSTROAD_AUTHORIZE names one; a test says what it answers."""

from collections.abc import Awaitable, Callable

from postroad.access.hook import Attempt, Decision

not_to_be_called = 5


class Operator:
    """Lets everything be as Postroad decided, unless a test has it answer otherwise."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.answer: Callable[[Attempt], Decision | Awaitable[Decision]] | None = None

    def __call__(self, attempt: Attempt) -> Decision | Awaitable[Decision]:
        self.attempts.append(attempt)
        return self.answer(attempt) if self.answer else None


authorize = Operator()
