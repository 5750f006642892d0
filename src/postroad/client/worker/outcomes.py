"""Outcomes of a message, and the exceptions with which a handler chooses one. Pure."""

import traceback
from dataclasses import dataclass
from enum import StrEnum

from postroad.api.queues import Message

REASON_CHARS_MAX = 1000


class Retry(Exception):
    """Raised by a handler: deliver the message again after `delay_ms`, or after the queue's retry delay if left out."""

    def __init__(self, delay_ms: int | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler requested a retry")
        self.delay_ms = delay_ms
        self.reason = reason


class DeadLetter(Exception):
    """Raised by a handler: move the message to the dead letters, with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected the message")
        self.reason = reason


class LeaseLost(Exception):
    """The lease ended: the message is or will be delivered again, or its job was cancelled. Raised by `Lease.check`."""


class GroupInterrupted(Exception):
    """An earlier message of the group was not done, so this one returns to the queue: it must follow the other."""


class Outcome(StrEnum):
    DONE = "done"
    RETRIED = "retried"
    DEAD = "dead"
    REQUEUED = "requeued"
    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a message, and the reason unless it is done."""

    message: Message
    outcome: Outcome
    reason: str | None = None


def reason_of(problem: BaseException) -> str:
    """The last line of the exception's traceback."""
    return truncate("".join(traceback.format_exception_only(problem)))


def truncate(reason: str) -> str:
    """The reason within the limits of the API: valid Unicode, at most 1,000 characters."""
    return reason.strip().encode("utf-8", "replace").decode()[:REASON_CHARS_MAX]
