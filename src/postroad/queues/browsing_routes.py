"""Looking after a queue over HTTP: peek and search, dead letters, redrive, purge, pause."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.http.messages import Request, Response
from postroad.http.routing import Route
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import EngineUnavailable, MessageNotFound, PreconditionFailed, QueueNotFound
from postroad.kernel.identity import Scope
from postroad.queues.browsing import Redrive, Upkeep, WaitingMessage
from postroad.queues.dead_letters import DeadLetterGroup, DeadLetters, StoredDeadLetter
from postroad.queues.filters import FieldText, MessageFilter, ReasonText, Text
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.routes import QueueView, queue_view
from postroad.queues.rules import StoredMessage
from postroad.tasks.rules import TaskView, task_view

_BODY_MAX = 512
When = Annotated[datetime, Meta(tz=True)]


class PeekQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"since": "from", "until": "to"}):
    state: Annotated[str, Meta(pattern="^(ready|delayed)$", description="`ready` (leased ones too) or `delayed`.")] = "ready"
    search: Annotated[Text, Meta(description="A text in the payload.")] | None = None
    header: Annotated[Text, Meta(description="`name`, or `name=value`.")] | None = None
    field: Annotated[FieldText, Meta(description="`path.to.field=value` in the payload.")] | None = None
    messageId: Text | None = None  # noqa: N815  # the names in the URL
    jobId: Text | None = None  # noqa: N815
    correlationId: Text | None = None  # noqa: N815
    since: Annotated[When, Meta(description="Stored not before.")] | None = None
    until: Annotated[When, Meta(description="Stored before.")] | None = None
    bodyMax: Annotated[  # noqa: N815
        int, Meta(ge=0, le=8 * 1024 * 1024, description="Payloads with more bytes come as `payloadStart`.")
    ] = _BODY_MAX
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: Annotated[int, Meta(ge=1, le=2**62)] | None = None


class DeadQuery(PeekQuery, frozen=True, kw_only=True):
    reason: Annotated[ReasonText, Meta(description="Exactly this reason.")] | None = None
    groupBy: Annotated[str, Meta(pattern="^reason$", description="`reason`: groups instead of letters.")] | None = None  # noqa: N815


class MessageView(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """`payload` as it was sent or, if it is over `bodyMax`, its beginning as a text in `payloadStart`."""

    message_id: str
    job_id: str
    state: str
    headers: dict[str, str]
    enqueued_at: Timestamp
    payload_bytes: int
    payload: msgspec.Raw | UnsetType = UNSET
    payload_start: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


class DeadView(MessageView, frozen=True, kw_only=True):
    reason: str
    last_error: str | None
    attempts: int
    first_failed_at: Timestamp | None
    dead_at: Timestamp


class GroupView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    reason: str
    count: int
    first_at: Timestamp
    last_at: Timestamp


class MessageList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`scanned` were looked at, `matched` fit; with a `nextCursor` there is more to look at."""

    messages: list[MessageView]
    scanned: int
    matched: int
    next_cursor: str | None


class DeadList(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """`total` dead letters are there; `groups` is there when groups were asked for, and then `messages` is not."""

    total: int
    scanned: int
    matched: int
    next_cursor: str | None
    messages: list[DeadView] | UnsetType = UNSET
    groups: list[GroupView] | UnsetType = UNSET


class Purge(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    dry_run: Annotated[bool, Meta(description="Only count them.")] = False


class DeadPurge(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    filter: MessageFilter = MessageFilter()
    dry_run: Annotated[bool, Meta(description="Only count them.")] = False


class Purged(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    count: int
    dry_run: bool


class Redriven(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`count` dead letters fit. The task puts them back; it is null if they were only counted."""

    count: int
    task: TaskView | None


class UpkeepRoutes:
    def __init__(self, definitions: QueueLifecycle, dead: DeadLetters, upkeep: Upkeep) -> None:
        self._definitions, self._dead, self._upkeep = definitions, dead, upkeep

    def table(self) -> Sequence[Route]:
        return [*self._looking(), *self._acting()]

    def _looking(self) -> list[Route]:
        one, errors = "/v1/queues/{queue}", (QueueNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                f"{one}/messages",
                self.peek,
                Scope.READ,
                "Look at messages without leasing them",
                "Messages",
                query=PeekQuery,
                answer=MessageList,
                errors=errors,
                description="Oldest first. A search looks at some thousands at a time and says where to go on.",
            ),
            Route(
                "GET",
                f"{one}/dlq",
                self.list_dead,
                Scope.READ,
                "Look at dead letters",
                "Dead letters",
                query=DeadQuery,
                answer=DeadList,
                errors=errors,
            ),
            Route(
                "GET",
                f"{one}/dlq/{{message}}",
                self.get_dead,
                Scope.READ,
                "Show a dead letter",
                "Dead letters",
                answer=DeadView,
                errors=(MessageNotFound, *errors),
            ),
        ]

    def _acting(self) -> list[Route]:
        one, dlq, errors = "/v1/queues/{queue}", "/v1/queues/{queue}/dlq", (QueueNotFound, EngineUnavailable)
        return [
            Route(
                "DELETE",
                f"{dlq}/{{message}}",
                self.delete_dead,
                Scope.WRITE,
                "Drop a dead letter",
                "Dead letters",
                status=204,
                errors=(MessageNotFound, *errors),
            ),
            Route(
                "POST",
                f"{dlq}/redrive",
                self.redrive,
                Scope.WRITE,
                "Put dead letters back",
                "Dead letters",
                body=Redrive,
                answer=Redriven,
                status=202,
                more_statuses=(200,),
                errors=(PreconditionFailed, *errors),
                description="A task does it, at its rate: see /v1/tasks. One at a time per queue. 200 for a dry run.",
            ),
            Route(
                "POST",
                f"{dlq}/purge",
                self.purge_dead,
                Scope.WRITE,
                "Drop dead letters",
                "Dead letters",
                body=DeadPurge,
                answer=Purged,
                errors=errors,
            ),
            Route(
                "POST",
                f"{one}/purge",
                self.purge,
                Scope.WRITE,
                "Drop all messages that wait",
                "Queues",
                body=Purge,
                answer=Purged,
                errors=errors,
                description="Leased and delayed ones, too. Dead letters stay.",
            ),
            Route(
                "POST",
                f"{one}/pause",
                self.pause,
                Scope.WRITE,
                "Stop delivering",
                "Queues",
                answer=QueueView,
                errors=errors,
                description="On every worker, until `resume`. Publishing and settling go on.",
            ),
            Route("POST", f"{one}/resume", self.resume, Scope.WRITE, "Deliver again", "Queues", answer=QueueView, errors=errors),
        ]

    async def peek(self, request: Request) -> Response:
        query: PeekQuery = request.query
        record = await self._definitions.find(request.caller.tenant, request.parameters["queue"])
        found = await self._upkeep.peek(
            record,
            _filter(query),
            limit=query.limit,
            from_sequence=query.cursor or 1,
            is_delayed=query.state == "delayed",
            since_ms=_ms(query.since),
            until_ms=_ms(query.until),
        )
        views = [_message_view(one, query.bodyMax) for one in found.items]
        return Response(
            MessageList(messages=views, scanned=found.scanned, matched=len(views), next_cursor=_cursor(found.next_sequence))
        )

    async def list_dead(self, request: Request) -> Response:
        query: DeadQuery = request.query
        record = await self._definitions.find(request.caller.tenant, request.parameters["queue"])
        total = await self._dead.count(record)
        if query.groupBy is not None:
            groups, found = await self._dead.groups(record, _filter(query), query.cursor or 1, _ms(query.since), _ms(query.until))
            views = [_group_view(group) for group in groups]
            return Response(
                DeadList(
                    total=total,
                    scanned=found.scanned,
                    matched=len(found.items),
                    next_cursor=_cursor(found.next_sequence),
                    groups=views,
                )
            )
        found = await self._dead.page(
            record,
            _filter(query),
            limit=query.limit,
            from_sequence=query.cursor or 1,
            since_ms=_ms(query.since),
            until_ms=_ms(query.until),
        )
        return Response(
            DeadList(
                total=total,
                scanned=found.scanned,
                matched=len(found.items),
                next_cursor=_cursor(found.next_sequence),
                messages=[_dead_view(one, query.bodyMax) for one in found.items],
            )
        )

    async def get_dead(self, request: Request) -> Response:
        record = await self._definitions.find(request.caller.tenant, request.parameters["queue"])
        return Response(_dead_view(await self._dead.find(record, request.parameters["message"]), 8 * 1024 * 1024))

    async def delete_dead(self, request: Request) -> Response:
        await self._upkeep.drop_dead(request.context, request.parameters["queue"], request.parameters["message"])
        return Response(status=204)

    async def redrive(self, request: Request) -> Response:
        wanted: Redrive = request.body
        count, task = await self._upkeep.redrive(request.context, request.parameters["queue"], wanted)
        return Response(Redriven(count=count, task=task_view(task) if task else None), status=202 if task else 200)

    async def purge_dead(self, request: Request) -> Response:
        wanted: DeadPurge = request.body
        count = await self._upkeep.purge_dead(
            request.context, request.parameters["queue"], wanted.filter, is_dry_run=wanted.dry_run
        )
        return Response(Purged(count=count, dry_run=wanted.dry_run))

    async def purge(self, request: Request) -> Response:
        wanted: Purge = request.body
        count = await self._upkeep.purge(request.context, request.parameters["queue"], is_dry_run=wanted.dry_run)
        return Response(Purged(count=count, dry_run=wanted.dry_run))

    async def pause(self, request: Request) -> Response:
        return Response(queue_view(await self._definitions.pause(request.context, request.parameters["queue"], is_paused=True)))

    async def resume(self, request: Request) -> Response:
        return Response(queue_view(await self._definitions.pause(request.context, request.parameters["queue"], is_paused=False)))


def _filter(query: PeekQuery) -> MessageFilter:
    return MessageFilter(
        search=query.search,
        header=query.header,
        field=query.field,
        message_id=query.messageId,
        job_id=query.jobId,
        correlation_id=query.correlationId,
        reason=query.reason if isinstance(query, DeadQuery) else None,
    )


def _ms(when: datetime | None) -> int | None:
    return None if when is None else int(when.timestamp() * 1000)


def _cursor(sequence: int | None) -> str | None:
    return None if sequence is None else str(sequence)


def _payload(message: StoredMessage, body_max: int) -> tuple[msgspec.Raw | UnsetType, str | UnsetType]:
    raw = bytes(message.payload)
    if len(raw) <= body_max:
        return message.payload, UNSET
    return UNSET, raw[:body_max].decode("utf-8", "ignore")


def _message_view(one: WaitingMessage, body_max: int) -> MessageView:
    payload, start = _payload(one.message, body_max)
    return MessageView(
        message_id=one.message.id,
        job_id=one.message.job,
        state="delayed" if one.is_delayed else "ready",
        headers=one.message.headers,
        enqueued_at=rfc3339(one.message.at),
        payload_bytes=len(bytes(one.message.payload)),
        payload=payload,
        payload_start=start,
        correlation_id=one.message.corr if one.message.corr is not None else UNSET,
        traceparent=one.message.trace if one.message.trace is not None else UNSET,
    )


def _dead_view(one: StoredDeadLetter, body_max: int) -> DeadView:
    payload, start = _payload(one.message, body_max)
    letter = one.letter
    return DeadView(
        message_id=one.message.id,
        job_id=one.message.job,
        state="dead",
        headers=one.message.headers,
        enqueued_at=rfc3339(one.message.at),
        payload_bytes=len(bytes(one.message.payload)),
        payload=payload,
        payload_start=start,
        correlation_id=one.message.corr if one.message.corr is not None else UNSET,
        traceparent=one.message.trace if one.message.trace is not None else UNSET,
        reason=letter.reason,
        last_error=letter.last_error,
        attempts=letter.attempts,
        first_failed_at=None if letter.first_failed_at is None else rfc3339(letter.first_failed_at),
        dead_at=rfc3339(letter.dead_at),
    )


def _group_view(group: DeadLetterGroup) -> GroupView:
    return GroupView(
        reason=group.reason, count=group.count, first_at=rfc3339(group.first_at_ms), last_at=rfc3339(group.last_at_ms)
    )
