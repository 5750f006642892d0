"""Positions of live readers of a topic: event ids, and where a reader starts. Pure.

An event id is `<sequence>-<incarnation>`: the last 12 digits of the topic's incarnation, since ids of topics that were created
soon after each other start alike.
"""

import re
from dataclasses import dataclass

from postroad.kernel.errors import InvalidParameter

_EVENT_ID = re.compile(r"([0-9]{1,19})(?:-([0-9a-f]{12}))?")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The last message that a reader has. `incarnation` None: not known, of a bare sequence."""

    after: int
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class LiveStart:
    """Where a reader starts: after a sequence. `gap`: the first and last sequence of the messages that it misses.

    `is_reset`: its position is not one of this topic, so it starts with the oldest message.
    """

    after: int
    gap: tuple[int, int] | None = None
    is_reset: bool = False


def incarnation_tag(incarnation: str) -> str:
    return incarnation[-12:]


def parse_event_id(text: str) -> ResumePoint:
    """Raises InvalidParameter."""
    match = _EVENT_ID.fullmatch(text)
    if match is None:
        raise InvalidParameter("Last-Event-ID was not sent by this stream; connect without it")
    return ResumePoint(int(match[1]), match[2])


def start_of(resume: ResumePoint, incarnation: str, first: int, last: int) -> LiveStart:
    """`first` is the sequence of the oldest stored message, `last` that of the newest; `first` is larger if there is none."""
    if resume.incarnation not in (None, incarnation_tag(incarnation)) or resume.after > last:
        return LiveStart(first - 1, is_reset=True)
    if resume.after + 1 < first:
        return LiveStart(first - 1, gap=(resume.after + 1, first - 1))
    return LiveStart(resume.after)


def event_id(incarnation: str, sequence: int) -> str:
    return f"{sequence}-{incarnation_tag(incarnation)}"
