"""Search: what happened to commands."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Page
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.names import COMMAND, SERVICE

BODY_MAX = 256 * 1024
_SERVICE = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?{SERVICE.pattern}$"


class CommandQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64, description="Id of the command.")] | None = None
    source: Annotated[str, Meta(pattern=_SERVICE, description="The sender, a service of the tenant.")] | None = None
    target: Annotated[str, Meta(pattern=_SERVICE, description="`<service>`, or `<tenant>/<service>`.")] | None = None
    command: Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="Name of the command.")] | None = None
    outcome: Annotated[Literal["delivered", "failed", "invalid", "duplicate"], Meta(description="What became of it.")] | None = (
        None
    )
    reason: Annotated[str, Meta(min_length=1, max_length=64, description="Why it failed, such as `acl-deny`.")] | None = None
    replay: Annotated[str, Meta(min_length=1, max_length=64, description="Id of the replay that sent it.")] | None = None
    since: Annotated[AwareDatetime, Meta(description="Received at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareDatetime, Meta(description="Received before this time.")] | None = msgspec.field(
        name="to", default=None
    )
    body_max: Annotated[
        int, Meta(ge=0, le=BODY_MAX, description="Payloads up to so many bytes are returned; of longer ones the beginning.")
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=1000, description="Items per page.")] = 50
    cursor: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$")] | None = None


class FoundCommand(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What happened to a command. `payload` is its text as it was sent; `payload_start` the beginning of a long one.

    Neither is there without `bodyMax`, without `archive` of the route, or if the HMAC was not valid.
    """

    at: Timestamp
    outcome: str
    command_id: str | None
    source: str
    target: str | None
    command: str | None
    reason: str | None = None
    detail: str | None = None
    path: str | None = None
    escalated: str | None = None
    dispatch_latency_ms: float | None = None
    message_id: str | None = None
    sent_at: str | None = None
    payload: str | None = None
    payload_start: str | None = None
    payload_bytes: int | None = None
    replay_id: str | None = None
    replay_reason: str | None = None


class CommandPage(Page[FoundCommand], frozen=True, kw_only=True):
    """One page of a search: `scanned` outcomes were compared, `matched` of them match.

    With a `next_cursor` the search is not complete, even if nothing matched so far. Commands before `available_from` are not
    found here any more, those after it all are; null if no command is stored.
    """

    items: list[FoundCommand] = msgspec.field(name="commands")
    next_cursor: str | None
    scanned: int
    matched: int
    available_from: Timestamp | None = None
