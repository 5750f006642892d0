"""Event types of replays."""

from typing import ClassVar

from postroad.kernel.event import Event


class ReplayRequested(Event, frozen=True, kw_only=True, tag="replay.requested"):
    """Commands of the archive are to be selected; the pipeline answers on `REPLAYS`. `selection` is a JSON text."""

    stream: ClassVar[str] = "COMMANDS"
    table: ClassVar[str] = "command_events"

    version: int = 1
    replay_id: str
    reason: str
    selection: str
    key_id: str = ""
    request_id: str = ""


class ReplayEnded(Event, frozen=True, kw_only=True, tag="replay.ended"):
    """A replay ended: `state` is `done`, `cancelled` or `failed`. The numbers are those of its commands."""

    stream: ClassVar[str] = "COMMANDS"
    table: ClassVar[str] = "command_events"

    version: int = 1
    replay_id: str
    reason: str
    state: str
    selected: int
    delivered: int
    duplicates: int
    refused: int
    remaining: int


EVENTS: tuple[type[Event], ...] = (ReplayRequested, ReplayEnded)
