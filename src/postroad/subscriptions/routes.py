"""HTTP routes of subscriptions: create, list, show, change, pause, resume, rotate, delete, test, replay, attempts."""

from collections.abc import Sequence

from postroad.api.queues import QueueNotFound
from postroad.api.stream_subscriptions import SubscriptionNotFound, WebhookRefused
from postroad.api.subscription_tests import DeliveryTest, DeliveryTestResult, FilterTest, FilterTestResult
from postroad.api.subscriptions import (
    Attempt,
    AttemptQuery,
    Attempts,
    FilterInvalid,
    NewSubscription,
    Replay,
    ReplayRequest,
    RewindRequest,
    RotatedSecret,
    SecretRotation,
    Subscription,
    SubscriptionPage,
    SubscriptionPatch,
    SubscriptionQuery,
    SubscriptionState,
    SubscriptionStatus,
)
from postroad.api.topics import TopicNotFound
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import AlreadyExists, EngineUnavailable, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.subscriptions.attempt_log import AttemptLog
from postroad.subscriptions.records import AttemptRecord, SubscriptionRecord, subscription_of
from postroad.subscriptions.replay import Replayer
from postroad.subscriptions.rewinding import Rewinder
from postroad.subscriptions.service import Subscriptions
from postroad.subscriptions.status import StatusReader
from postroad.subscriptions.testing import DeliveryTester, filter_result
from postroad.tasks.rules import task_of

_TAG = "Subscriptions"
_ONE = "/v1/subscriptions/{subscription}"
_COLUMNS = ("id", "name", "topic", "delivery_type", "state", "filter", "url", "queue")
_ERRORS = (SubscriptionNotFound, EngineUnavailable)


class SubscriptionRoutes:
    def __init__(
        self,
        subscriptions: Subscriptions,
        status: StatusReader,
        attempts: AttemptLog,
        tester: DeliveryTester,
        replayer: Replayer,
        rewinder: Rewinder,
        clock: Clock,
    ) -> None:
        self._subscriptions, self._status, self._attempts, self._clock = subscriptions, status, attempts, clock
        self._tester, self._replayer, self._rewinder = tester, replayer, rewinder

    def table(self) -> Sequence[Route]:
        return [*self._lifecycle_table(), *self._operation_table()]

    def _lifecycle_table(self) -> Sequence[Route]:
        return [
            Route(
                "POST",
                "/v1/topics/{topic}/subscriptions",
                self.create_subscription,
                Scope.ADMIN,
                "Subscribe to a topic",
                _TAG,
                body=NewSubscription,
                response=Subscription,
                status=201,
                other_statuses=(200,),
                errors=(
                    TopicNotFound,
                    QueueNotFound,
                    WebhookRefused,
                    FilterInvalid,
                    AlreadyExists,
                    InvalidParameter,
                    EngineUnavailable,
                ),
                description="A generated `secret` is in this response only. A request with the name and the settings of an "
                "existing subscription returns that with status 200.",
                sdk="subscriptions.create",
                cli=Command("subscriptions create"),
            ),
            Route(
                "GET",
                "/v1/subscriptions",
                self.list_subscriptions,
                Scope.READ,
                "List subscriptions",
                _TAG,
                query=SubscriptionQuery,
                response=SubscriptionPage,
                sdk="subscriptions.list",
                cli=Command("subscriptions list", _COLUMNS),
                allows_admin=True,
            ),
            Route(
                "GET",
                _ONE,
                self.get_subscription,
                Scope.READ,
                "Show a subscription with its status",
                _TAG,
                response=Subscription,
                errors=_ERRORS,
                sdk="subscriptions.get",
                cli=Command("subscriptions get"),
                allows_admin=True,
            ),
            Route(
                "PATCH",
                _ONE,
                self.change_subscription,
                Scope.ADMIN,
                "Change a subscription",
                _TAG,
                body=SubscriptionPatch,
                response=Subscription,
                errors=(*_ERRORS, QueueNotFound, WebhookRefused, FilterInvalid),
                description="Fields that are left out stay. Patterns and filters apply to messages that are read from now on.",
                sdk="subscriptions.update",
                cli=Command("subscriptions update"),
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_subscription,
                Scope.ADMIN,
                "Delete a subscription",
                _TAG,
                status=204,
                errors=_ERRORS,
                description="Its progress, attempts and dead letters are deleted, too.",
                sdk="subscriptions.delete",
                cli=Command(
                    "subscriptions delete", confirm="Delete the subscription {subscription}?", done="deleted {subscription}"
                ),
            ),
            Route(
                "POST",
                f"{_ONE}/secret",
                self.rotate_secret,
                Scope.ADMIN,
                "Replace the secret of a subscription",
                _TAG,
                body=SecretRotation,
                empty_body=SecretRotation(),
                response=RotatedSecret,
                errors=_ERRORS,
                description="During the grace time deliveries are signed with both secrets; `X-MQ-Signature` uses the older one.",
                sdk="subscriptions.rotate_secret",
                cli=Command("subscriptions rotate-secret", shown_once="secret"),
            ),
        ]

    def _operation_table(self) -> Sequence[Route]:
        return [
            Route(
                "POST",
                f"{_ONE}/pause",
                self.pause_subscription,
                Scope.WRITE,
                "Pause a subscription",
                _TAG,
                response=Subscription,
                errors=(*_ERRORS, PreconditionFailed),
                description="Messages wait in the topic, as long as its retention allows.",
                sdk="subscriptions.pause",
                cli=Command("subscriptions pause", done="paused {subscription}"),
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/resume",
                self.resume_subscription,
                Scope.WRITE,
                "Resume a paused or disabled subscription",
                _TAG,
                response=Subscription,
                errors=(*_ERRORS, PreconditionFailed),
                sdk="subscriptions.resume",
                cli=Command("subscriptions resume", done="resumed {subscription}"),
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/test",
                self.test_subscription,
                Scope.WRITE,
                "Send a test message to the endpoint",
                _TAG,
                body=DeliveryTest,
                empty_body=DeliveryTest(),
                response=DeliveryTestResult,
                errors=(*_ERRORS, PreconditionFailed, InvalidParameter),
                description="Returns the complete attempt. The message is not stored, and its sequence is 0.",
                sdk="subscriptions.test",
                cli=Command("subscriptions test"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/replay",
                self.replay_subscription,
                Scope.WRITE,
                "Deliver a range of the topic again",
                _TAG,
                body=ReplayRequest,
                response=Replay,
                status=202,
                other_statuses=(200,),
                errors=(*_ERRORS, TopicNotFound, PreconditionFailed),
                description="Starts a task beside the live delivery; see /v1/tasks. The status of a dry run is 200.",
                sdk="subscriptions.replay",
                cli=Command("subscriptions replay"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ONE}/rewind",
                self.rewind_subscription,
                Scope.WRITE,
                "Start the delivery again at an earlier message",
                _TAG,
                body=RewindRequest,
                response=Subscription,
                errors=(*_ERRORS, TopicNotFound, PreconditionFailed),
                description="In the order of the topic; then it goes on with new messages, or stops at `toTime`. Messages that "
                "are delivered again have the header `X-MQ-Replayed`.",
                sdk="subscriptions.rewind",
                cli=Command("subscriptions rewind"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                f"{_ONE}/rewind",
                self.end_rewind,
                Scope.WRITE,
                "End a rewind",
                _TAG,
                response=Subscription,
                errors=(*_ERRORS, TopicNotFound),
                description="The delivery goes on with the messages that were published after the rewind was started.",
                sdk="subscriptions.end_rewind",
                cli=Command("subscriptions end-rewind", done="ended the rewind of {subscription}"),
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{_ONE}/attempts",
                self.list_attempts,
                Scope.READ,
                "List the last attempts of a subscription",
                _TAG,
                query=AttemptQuery,
                response=Attempts,
                errors=_ERRORS,
                description="The last 100, newest first: every failure, and at most one success per second.",
                sdk="subscriptions.attempts",
                cli=Command("subscriptions attempts"),
                allows_admin=True,
            ),
            Route(
                "POST",
                "/v1/subscriptions/filters/test",
                self.test_filter,
                Scope.READ,
                "Test a filter on a message",
                _TAG,
                body=FilterTest,
                response=FilterTestResult,
                errors=(FilterInvalid, InvalidParameter),
                sdk="subscriptions.test_filter",
                cli=Command("subscriptions test-filter"),
                repeatable=True,
                allows_admin=True,
            ),
        ]

    def _shown(
        self, record: SubscriptionRecord, *, status: SubscriptionStatus | None = None, secret: str | None = None
    ) -> Subscription:
        return subscription_of(record, self._clock(), status=status, secret=secret)

    async def create_subscription(self, request: Request) -> Response:
        record, secret, is_new = await self._subscriptions.create(request.context, request.parameters["topic"], request.body)
        return Response(self._shown(record, secret=secret), status=201 if is_new else 200)

    async def list_subscriptions(self, request: Request) -> Response:
        query: SubscriptionQuery = request.query
        page = self._subscriptions.page(request.caller, query.topic, query.state, query.limit, query.cursor)
        return Response(SubscriptionPage(items=[self._shown(one) for one in page.items], next_cursor=page.next_cursor))

    async def get_subscription(self, request: Request) -> Response:
        record = await self._find(request)
        return Response(self._shown(record, status=await self._status.read(record)))

    async def change_subscription(self, request: Request) -> Response:
        record = await self._subscriptions.change(request.context, request.parameters["subscription"], request.body)
        return Response(self._shown(record))

    async def delete_subscription(self, request: Request) -> Response:
        await self._subscriptions.delete(request.context, request.parameters["subscription"])
        return Response(status=204)

    async def rotate_secret(self, request: Request) -> Response:
        return Response(
            await self._subscriptions.rotate_secret(request.context, request.parameters["subscription"], request.body)
        )

    async def pause_subscription(self, request: Request) -> Response:
        return await self._set_state(request, SubscriptionState.PAUSED)

    async def resume_subscription(self, request: Request) -> Response:
        return await self._set_state(request, SubscriptionState.ACTIVE)

    async def _set_state(self, request: Request, state: SubscriptionState) -> Response:
        record = await self._subscriptions.set_state(request.context, request.parameters["subscription"], state)
        return Response(self._shown(record))

    async def test_subscription(self, request: Request) -> Response:
        return Response(await self._tester.deliver(await self._find(request), request.body))

    async def replay_subscription(self, request: Request) -> Response:
        count, task = await self._replayer.start(request.context, request.parameters["subscription"], request.body)
        shown = None if task is None else task_of(task)
        return Response(Replay(count=count, task=shown), status=200 if task is None else 202)

    async def rewind_subscription(self, request: Request) -> Response:
        record = await self._rewinder.start(request.context, request.parameters["subscription"], request.body)
        return Response(self._shown(record))

    async def end_rewind(self, request: Request) -> Response:
        return Response(self._shown(await self._rewinder.end(request.context, request.parameters["subscription"])))

    async def list_attempts(self, request: Request) -> Response:
        query: AttemptQuery = request.query
        found = [
            _attempt_of(one)
            for one in await self._attempts.last(await self._find(request))
            if query.outcome is None or (one.outcome == "delivered") == (query.outcome == "delivered")
        ]
        return Response(Attempts(attempts=found[: query.limit]))

    async def test_filter(self, request: Request) -> Response:
        return Response(filter_result(request.body))

    async def _find(self, request: Request) -> SubscriptionRecord:
        return await self._subscriptions.find(request.caller, request.parameters["subscription"])


def _attempt_of(stored: AttemptRecord) -> Attempt:
    return Attempt(
        at=rfc3339(stored.at),
        sequence=stored.seq,
        subject=stored.subject,
        attempt=stored.n,
        outcome=stored.outcome,  # type: ignore[arg-type]  # written by `Attempter`
        duration_ms=stored.ms,
        status=stored.status,
        error=stored.error,
        response=stored.body,
        next_attempt_at=None if stored.next is None else rfc3339(stored.next),
    )
