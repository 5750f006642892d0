"""HTTP routes of the dead letters of subscriptions: list, group, redrive, purge."""

import asyncio
from collections.abc import Sequence

import msgspec

from postroad.api.queues import Purged
from postroad.api.stream_subscriptions import SubscriptionNotFound
from postroad.api.subscriptions import (
    Replay,
    SubscriptionDeadGroups,
    SubscriptionDeadLetterFilter,
    SubscriptionDeadLetterQuery,
    SubscriptionDeadLetters,
    SubscriptionPurgeRequest,
    SubscriptionRedriveRequest,
)
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.subscriptions.dead_letters import SubscriptionDeadLetterStore, dead_letter_of, groups_of
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.redrive import SubscriptionRedriver
from postroad.subscriptions.service import Subscriptions
from postroad.tasks.rules import task_of

_TAG = "Subscriptions"
_DLQ = "/v1/subscriptions/{subscription}/dlq"
_GROUPED_MAX = 5_000
_DELETE_CHUNK_SIZE = 100


class SubscriptionDeadLetterRoutes:
    def __init__(
        self,
        subscriptions: Subscriptions,
        dead_letters: SubscriptionDeadLetterStore,
        redriver: SubscriptionRedriver,
        audit: Audit,
    ) -> None:
        self._subscriptions, self._dead_letters, self._redriver, self._audit = subscriptions, dead_letters, redriver, audit

    def table(self) -> Sequence[Route]:
        errors = (SubscriptionNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                _DLQ,
                self.list_subscription_dead_letters,
                Scope.READ,
                "List the dead letters of a subscription",
                _TAG,
                query=SubscriptionDeadLetterQuery,
                response=SubscriptionDeadLetters,
                errors=errors,
                description="Oldest first. One request searches some thousands; `nextCursor` continues the search.",
                sdk="subscriptions.dead_letters",
                cli=Command("subscriptions dlq", ("sequence", "subject", "reason", "attempt_count", "dead_at")),
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{_DLQ}/groups",
                self.group_dead_letters,
                Scope.READ,
                "Count the dead letters of a subscription by reason",
                _TAG,
                response=SubscriptionDeadGroups,
                errors=errors,
                sdk="subscriptions.dead_letter_groups",
                cli=Command("subscriptions dlq-groups"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_DLQ}/redrive",
                self.redrive_subscription_dead_letters,
                Scope.WRITE,
                "Deliver dead letters of a subscription again",
                _TAG,
                body=SubscriptionRedriveRequest,
                empty_body=SubscriptionRedriveRequest(),
                response=Replay,
                status=202,
                other_statuses=(200,),
                errors=(PreconditionFailed, *errors),
                description="Starts a task that makes one attempt for each; see /v1/tasks. Those that fail again stay. "
                "The status of a dry run is 200.",
                sdk="subscriptions.redrive_dead_letters",
                cli=Command("subscriptions redrive"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_DLQ}/purge",
                self.purge_subscription_dead_letters,
                Scope.WRITE,
                "Delete dead letters of a subscription",
                _TAG,
                body=SubscriptionPurgeRequest,
                empty_body=SubscriptionPurgeRequest(),
                response=Purged,
                errors=errors,
                sdk="subscriptions.purge_dead_letters",
                cli=Command("subscriptions purge-dlq", confirm="Delete dead letters of {subscription}?"),
                repeatable=True,
                allows_admin=True,
            ),
        ]

    async def list_subscription_dead_letters(self, request: Request) -> Response:
        query: SubscriptionDeadLetterQuery = request.query
        record = await self._find(request)
        wanted = SubscriptionDeadLetterFilter(reason=query.reason, subject=query.subject, search=query.search)
        scan = await self._dead_letters.scan(record, wanted, query.limit, query.cursor or 1)
        return Response(
            SubscriptionDeadLetters(
                items=[dead_letter_of(one.letter) for one in scan.found],
                next_cursor=None if scan.next_position is None else str(scan.next_position),
                scanned=scan.scanned,
                total=await self._dead_letters.count(record),
            )
        )

    async def group_dead_letters(self, request: Request) -> Response:
        record = await self._find(request)
        scan = await self._dead_letters.scan(record, SubscriptionDeadLetterFilter(), _GROUPED_MAX)
        total = await self._dead_letters.count(record)
        return Response(SubscriptionDeadGroups(groups=groups_of(scan.found), scanned=scan.scanned, total=total))

    async def redrive_subscription_dead_letters(self, request: Request) -> Response:
        count, task = await self._redriver.start(request.context, request.parameters["subscription"], request.body)
        shown = None if task is None else task_of(task)
        return Response(Replay(count=count, task=shown), status=200 if task is None else 202)

    async def purge_subscription_dead_letters(self, request: Request) -> Response:
        wanted: SubscriptionPurgeRequest = request.body
        record = await self._find(request)
        if wanted.dry_run:
            return Response(Purged(count=await self._dead_letters.count(record, wanted.filter), dry_run=True))
        before = {"filter": msgspec.to_builtins(wanted.filter)}
        async with self._audit.change(request.context, "subscription.dlq.purge", record.id, before=before):
            return Response(Purged(count=await self._purge(record, wanted.filter), dry_run=False))

    async def _purge(self, record: SubscriptionRecord, wanted: SubscriptionDeadLetterFilter) -> int:
        if wanted.is_empty:
            return await self._dead_letters.remove_all(record)
        count, position = 0, 1
        while True:
            scan = await self._dead_letters.scan(record, wanted, _DELETE_CHUNK_SIZE, position)
            await asyncio.gather(*(self._dead_letters.remove(record, one.position) for one in scan.found))
            count += len(scan.found)
            if scan.next_position is None:
                return count
            position = scan.next_position

    async def _find(self, request: Request) -> SubscriptionRecord:
        return await self._subscriptions.find(request.caller, request.parameters["subscription"])
