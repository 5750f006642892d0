"""Selection of archived commands for a replay.

The service asks with the event `replay.requested`, a line in a frame of the tenant on `COMMANDS`. The pipeline answers on the
work queue `REPLAYS`: one message for each selected command, then one with the number of commands. The service reads the
messages of one replay in the order in which they are stored.

The rows to search are those of the table `commands` (the lines `command.archived`) of the tenant, up to the position of the
request: rows of frames with a lower sequence on `COMMANDS`, and of lower lines in the same frame. So a selection that is
repeated after a crash finds the same rows, and publishes the same messages with the same indexes: the service drops indexes
that it has read before, also if the engine has forgotten the ids. Rows without a payload are never selected: their HMAC was
not valid, or they were too large.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.contracts.contract import Contract

SELECTED_MAX = 100_000
SELECTED_BYTES_MAX = 256 * 1024 * 1024
ARCHIVE_OUTCOMES = ("delivered", "failed", "invalid", "duplicate")

_Count = Annotated[int, Meta(ge=0)]


class ReplaySelection(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Which rows of the tenant to replay: the field `selection` of `replay.requested`, as JSON text.

    All conditions that are given must hold; an empty tuple is no condition. `sources` and `targets` are `<tenant>/<service>`.
    `since_ms` and `until_ms` bound the time at which a command was received (the row's `timestamp`), the end excluded. `ids` are
    command ids in lower case. A command id of a source that has several matching rows is selected once: the newest row. The
    commands are ordered by time, then by command id; at most the first `limit`, and as many as have `bytes_max` of payload.
    """

    v: Literal[1] = 1
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    since_ms: _Count = 0
    until_ms: _Count
    limit: Annotated[int, Meta(ge=1, le=SELECTED_MAX)] = SELECTED_MAX
    bytes_max: Annotated[int, Meta(ge=1)] = SELECTED_BYTES_MAX


class SelectedCommand(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A command of the archive. `payload` is its text as it was sent; `target` is `<tenant>/<service>`."""

    command_id: str
    source: str
    target: str
    name: str
    payload: str
    sent_at: str | None = None
    outcome: str = ""
    reason: str | None = None


class SelectionEnd(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The end of a selection. `count` commands precede it; `is_truncated`: more matched than `limit` or `bytes_max` allow.

    `error` is a text for people if the selection is impossible; then `count` is 0.
    """

    count: _Count
    is_truncated: bool = False
    error: str | None = None


class ReplayMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One selected command, or the end. `index` counts from 0; that of the end is the number of commands."""

    v: Literal[1]
    replay: str
    index: _Count
    command: SelectedCommand | None = None
    end: SelectionEnd | None = None


REPLAYS = Contract("REPLAYS", "replay.{tenant}.{replay}", "{replay}:{command}", ReplayMessage)
END_ID = "end"  # in place of a command in the id of the last message; in others it is `<source>/<command id>`
