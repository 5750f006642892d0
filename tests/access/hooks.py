"""An authorization hook for POSTROAD_AUTHORIZE, whose result tests set."""

from collections.abc import Awaitable, Callable

from postroad.access.hook import Attempt, Decision

not_to_be_called = 5


class Operator:
    """Keep Postroad's decision, unless a test has set another one."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.answer: Callable[[Attempt], Decision | Awaitable[Decision]] | None = None

    def __call__(self, attempt: Attempt) -> Decision | Awaitable[Decision]:
        self.attempts.append(attempt)
        return self.answer(attempt) if self.answer else None


authorize = Operator()
