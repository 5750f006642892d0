"""What can become of a message in a worker's hands, and how a handler chooses. Pure."""

import traceback
from dataclasses import dataclass
from enum import StrEnum

from postroad.api.queues import Message

REASON_CHARS_MAX = 1000


class Retry(Exception):
    """Raised by a handler: deliver the message again, after `delay_ms`; by the queue's ladder if that is left out."""

    def __init__(self, delay_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler wants to try again")
        self.delay_ms = delay_ms
        self.reason = reason


class DeadLetter(Exception):
    """Raised by a handler: give the message up, for this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave the message up")
        self.reason = reason


class LeaseLost(Exception):
    """The message is no longer this worker's: it is, or will be, delivered again. Raised by `Lease.check`."""


class Outcome(StrEnum):
    DONE = "done"
    RETRIED = "retried"
    DEAD = "dead"
    GIVEN_BACK = "given back"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a message, and why if it was not done."""

    message: Message
    outcome: Outcome
    reason: str | None = None


def reason_of(problem: BaseException) -> str:
    """The exception's own line, as at the end of a traceback."""
    return fitting("".join(traceback.format_exception_only(problem)))


def fitting(reason: str) -> str:
    """As the API takes it: not too long, and of characters that have an encoding."""
    return reason.strip().encode("utf-8", "replace").decode()[:REASON_CHARS_MAX]
