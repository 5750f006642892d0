"""Replays: archived commands, or dead letters of commands, sent again on request."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import NotFound
from postroad.kernel.names import COMMAND, QUEUE, SERVICE

SELECTED_MAX = 100_000
IDS_MAX = 1000
RATE_MAX = 10_000
_SERVICE = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?{SERVICE.pattern}$"

Outcome = Literal["delivered", "failed", "invalid", "duplicate"]
Origin = Literal["archive", "dead-letters"]
_Reason = Annotated[str, Meta(pattern="^[a-z][a-z0-9-]{0,63}$")]
_CommandId = Annotated[str, Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]


class ReplayNotFound(NotFound, code="replay-not-found", status=404, title="Replay not found"):
    """The tenant has no replay with this id, or it is older than 30 days."""


class ReplayState(StrEnum):
    SELECTING = "selecting"
    SELECTED = "selected"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (ReplayState.DONE, ReplayState.CANCELLED, ReplayState.FAILED)


class CommandSelection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which archived commands to send again. All conditions that are given must hold; `from` or `ids` is required.

    A command id that the sender used several times is selected once.
    """

    source: Annotated[str, Meta(pattern=_SERVICE, description="The sender, a service of the tenant.")] | None = None
    target: Annotated[str, Meta(pattern=_SERVICE, description="`<service>`, or `<tenant>/<service>`.")] | None = None
    command: Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="Name of the command.")] | None = None
    since: Annotated[AwareDatetime, Meta(description="Received at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareDatetime, Meta(description="Received before this time; now by default.")] | None = msgspec.field(
        name="to", default=None
    )
    outcomes: Annotated[tuple[Outcome, ...], Meta(max_length=4, description="What became of them; all by default.")] = ()
    reasons: Annotated[tuple[_Reason, ...], Meta(max_length=50, description="Why they failed, such as `acl-deny`.")] = ()
    ids: Annotated[tuple[_CommandId, ...], Meta(max_length=IDS_MAX, description="Ids of commands.")] = ()
    limit: Annotated[int, Meta(ge=1, le=SELECTED_MAX, description="At most so many, the oldest first.")] = SELECTED_MAX


class NewReplay(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`selection` is for `archive`; `queue`, `filter` and `limit` are for `dead-letters`."""

    origin: Annotated[Origin, Meta(description="Where the commands come from.")] = msgspec.field(name="from", default="archive")
    selection: CommandSelection | None = None
    queue: Annotated[str, Meta(pattern=f"^{QUEUE.pattern}$", description="Queue of a route, with dead letters.")] | None = None
    filter: DeadLetterFilter | None = None
    limit: Annotated[int, Meta(ge=1, le=SELECTED_MAX, description="At most so many dead letters.")] | None = None
    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=500,
            pattern=r"^[^\x00-\x1f\x7f]+$",
            description="Why; the audit log, the events and the target's headers have it.",
        ),
    ]
    rate_per_second: Annotated[int, Meta(ge=1, le=RATE_MAX, description="At most so many commands in a second.")] = 100
    dry_run: Annotated[bool, Meta(description="Only select; `resume` sends the selected commands.")] = False
    keep_ids: Annotated[bool, Meta(description="Send the commands with their own ids; false: with new ones.")] = True


class ReplayCounts(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`sent` = `delivered` + `duplicates` + the sum of `refused`; `selected` = `sent` + `remaining`."""

    selected: int = 0
    sent: int = 0
    delivered: int = 0
    duplicates: Annotated[int, Meta(description="Refused by a route with strict dedupe.")] = 0
    refused: Annotated[dict[str, int], Meta(description="Numbers by reason.")] = {}
    remaining: int = 0


class RefusedCommand(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A command that was not delivered, as a sample."""

    command_id: str
    source: str
    target: str
    command: str
    reason: str
    detail: str = ""


class Replay(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A replay. It is kept for 30 days."""

    id: str
    origin: Origin = msgspec.field(name="from")
    state: ReplayState
    reason: str
    selection: Annotated[dict[str, Any] | None, Meta(description="The request: of the archive, or of dead letters.")]
    queue: str | None
    dry_run: bool
    keep_ids: bool
    rate_per_second: int
    counts: ReplayCounts
    refused_sample: Annotated[list[RefusedCommand], Meta(description="The first refused commands.")]
    throttled_until: Annotated[Timestamp | None, Meta(description="A limit is exhausted; the replay waits until then.")]
    note: Annotated[str | None, Meta(description="Something to know, such as that no pipeline responds.")]
    error: str | None
    task_id: Annotated[str | None, Meta(description="The task that sends.")]
    created_by: Annotated[str, Meta(description="Id of the key that requested it.")]
    created_at: Timestamp
    updated_at: Timestamp
    ended_at: Timestamp | None

    @property
    def has_ended(self) -> bool:
        """True also for a dry run that has selected its commands."""
        return self.state.is_final or (self.dry_run and self.state is ReplayState.SELECTED)


class ReplayQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state: Annotated[ReplayState | None, Meta(description="Only replays in this state.")] = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


ReplayPage = page_of(Replay, "replays")
