"""HTTP routes that send commands: one, or a batch."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from postroad.api.command_limits import CommandMismatch, FairnessViolation, RateLimitExceeded
from postroad.api.commands import (
    AclDenied,
    CommandAccepted,
    CommandBatch,
    CommandBatchResult,
    CommandEnvelope,
    CommandInvalid,
    CommandResult,
    DeliveryFailure,
    DeliveryFull,
    RouteMissing,
    SourceRefused,
)
from postroad.commands.assessment import Assessed
from postroad.commands.dispatcher import Dispatcher
from postroad.http.problems import problem_of
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Respond, Route, Start
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable, InvalidParameter, PostroadError
from postroad.kernel.identity import Scope
from postroad.kernel.names import SERVICE, service_name

_TAG = "Commands"
SERVICE_HEADER = (
    "X-Postroad-Service",
    Annotated[
        str,
        Meta(
            pattern=f"^{SERVICE.pattern}$",
            description="The service that sends; needed with a key, optional with an emit token.",
        ),
    ],
)
_ERRORS = (
    CommandInvalid,
    InvalidParameter,
    AclDenied,
    SourceRefused,
    RouteMissing,
    CommandMismatch,
    RateLimitExceeded,
    FairnessViolation,
    DeliveryFailure,
    DeliveryFull,
    EngineUnavailable,
)


class CommandRoutes:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "POST",
                "/v1/commands",
                self.send_command,
                Scope.PUBLISH,
                "Send a command",
                _TAG,
                body=CommandEnvelope,
                raw_body=True,
                response=CommandAccepted,
                status=202,
                other_statuses=(200,),
                errors=_ERRORS,
                headers=(SERVICE_HEADER,),
                description="The command is in the target's queue, and its outcome event is stored, before the response. "
                "A repeated request with the same envelope is safe: the message is stored once for a minute. "
                "200: the route delivers each id once, and this one was delivered before.",
                accepts_emit_token=True,
                prepare=self.prepare_command,
            ),
            Route(
                "POST",
                "/v1/commands/batch",
                self.send_commands,
                Scope.PUBLISH,
                "Send up to 100 commands",
                _TAG,
                body=CommandBatch,
                response=CommandBatchResult,
                errors=(InvalidParameter, SourceRefused, EngineUnavailable),
                headers=(SERVICE_HEADER,),
                description="The response has a result for each command, in order. A failed command does not affect the others.",
                accepts_emit_token=True,
            ),
        ]

    async def send_command(self, request: Request) -> Response:
        done = await self._dispatcher.dispatch(request.context, _service(request), request.body)
        return _response(done)

    def prepare_command(self, request: Request) -> Start | None:
        assessed = self._dispatcher.prepare(request.context, _service(request), request.body)
        return None if assessed is None else partial(self._start_command, assessed)

    def _start_command(self, assessed: Assessed, respond: Respond) -> None:
        self._dispatcher.start(
            assessed, lambda outcome: respond(outcome if isinstance(outcome, Exception) else _response(outcome))
        )

    async def send_commands(self, request: Request) -> Response:
        batch: CommandBatch = request.body
        service, context = _service(request), request.context
        outcomes = await asyncio.gather(*(self._result(context, service, bytes(one)) for one in batch.commands))
        failed = sum(1 for one in outcomes if one.problem is not None)
        return Response(CommandBatchResult(delivered=len(outcomes) - failed, failed=failed, results=list(outcomes)))

    async def _result(self, context: RequestContext, service: str, body: bytes) -> CommandResult:
        try:
            done = await self._dispatcher.dispatch(context, service, body)
        except PostroadError as problem:
            return CommandResult(problem=problem_of(problem))
        return CommandResult(
            command_id=done.command_id,
            message_id=done.message_id,
            path=done.path,
            is_duplicate=done.is_duplicate,
            deliver_at=done.deliver_at,
        )


def _response(done: CommandAccepted) -> Response:
    return Response(done, status=200 if done.is_duplicate else 202)


def _service(request: Request) -> str:
    """The service that sends: that of the emit token, or of the header. Raises InvalidParameter, SourceRefused."""
    named, bound = request.header(b"x-postroad-service"), request.caller.service
    if bound is not None:
        if named not in (None, bound):
            raise SourceRefused("the emit token is of another service")
        return bound
    if named is None:
        raise InvalidParameter("name the service that sends in the header X-Postroad-Service, or use an emit token")
    return service_name(named)
