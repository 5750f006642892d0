"""The entry of AWS requests: finds protocol, operation, caller and input, runs the operation and encodes the response."""

import math
import traceback
from collections.abc import Mapping
from functools import partial

import structlog

from postroad.access.accounts import Accounts
from postroad.access.authentication import RequestAuthenticator
from postroad.aws import json_protocol, metrics, query_protocol
from postroad.aws.authentication import DEFAULT_REGION, AwsAuthentication, Identity, is_credential_given
from postroad.aws.calls import Action, Call, StartCall, check_required
from postroad.aws.errors import QUEUE_MISSING, AwsError, aws_error, view_of
from postroad.aws.model import ServiceModel, Values, service_model
from postroad.aws.policies import is_allowed
from postroad.aws.resource_names import SnsName, queue_arn, queue_path, sns_name, topic_arn
from postroad.aws.signatures import signed_service
from postroad.aws.sns_errors import sns_error, topic_missing
from postroad.http.request import ClientDisconnected, Request
from postroad.http.response import Response
from postroad.http.routing import Respond, Route, Start
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.identity import Caller

_TARGET = b"x-amz-target"
_DEFAULT_SERVICE = "sqs"
_NO_NAME = SnsName("", "", "")

log = structlog.get_logger("postroad.aws")


class AwsDispatcher:
    """`actions` has the served operations by service and name."""

    def __init__(
        self,
        actions: Mapping[str, Mapping[str, Action]],
        authentication: AwsAuthentication,
        authenticator: RequestAuthenticator,
        accounts: Accounts,
        public_url: str | None,
    ) -> None:
        self._actions, self._authentication, self._authenticator = actions, authentication, authenticator
        self._accounts, self._public_url = accounts, public_url
        self._prepared = {  # by `X-Amz-Target`
            f"{one.operation.model.target}.{name}".encode(): one
            for some in actions.values()
            for name, one in some.items()
            if one.prepare is not None
        }

    def route(self) -> Route:
        return Route(
            "POST",
            "/aws",
            self.handle,
            None,
            "AWS operation",
            "AWS",
            raw_body=True,
            accepts_large_body=self._authentication.accepts_large_body,
            error_response=error_response,
            prepare=self.prepare,
        )

    # Calls without a task

    def prepare(self, request: Request) -> Start | None:
        """An ordinary call of a busy operation in AWS JSON; None, without effect, if `handle` must serve the request."""
        action = self._prepared.get(request.headers.get(_TARGET, b""))
        if action is None or action.prepare is None:
            return None
        try:
            call = self._call_now(request, action)
            start = None if call is None else action.prepare(call)
        except Exception:  # any fault, a bug too: the handler meets it again, counts it and responds
            return None
        if start is None:
            return None
        request.operation = action.route.path
        return partial(self._start, request, action, start)

    def _call_now(self, request: Request, action: Action) -> Call | None:
        """The call, authenticated and authorized by what is in memory; None if that is not enough, or the call is refused."""
        identity = self._authentication.identify_now(request, action.operation.model.service)
        if identity is None or identity.caller is None:
            return None
        caller, values = identity.caller, _input(request, action, None)
        queue_account, queue = queue_path(values["QueueUrl"])
        request.parameters = {"queue": queue}
        if not self._authenticator.authorize_now(request, action.route, caller):
            return None
        if queue_account != self._accounts.known(caller.tenant) or not caller.may_use("queue", queue):
            return None
        request.identify(caller, self._authenticator.watch)
        return Call(request, request.context, values, queue, identity, queue_account, self._base_url(request))

    def _start(self, request: Request, action: Action, start: StartCall, respond: Respond) -> None:
        def on_result(outcome: Values | Exception | None) -> None:
            if isinstance(outcome, Exception):
                respond(outcome)
                return
            response: Response | Exception
            try:
                response = _result(action, outcome, request, is_json=True)
                metrics.calls.labels(action.operation.model.service, action.operation.name).inc()
            except Exception as error:  # a bug: the caller must not wait for ever
                response = error
            respond(response)

        start(on_result)

    # Calls in a task

    async def handle(self, request: Request) -> Response:
        """Serve one request. Errors are responses: a bug is 500, everything that a caller can cause is not."""
        form: dict[str, str] | None = None
        model: ServiceModel | None = None
        try:
            if _TARGET not in request.headers:
                form = query_protocol.parse_form(request.body or request.query_string)
                if request.method == "POST" and request.query_string:
                    form = {**query_protocol.parse_form(request.query_string), **form}
            action = self._find(request, form)
            model = action.operation.model
            request.operation = action.route.path
            return await self._run(request, action, form)
        except AwsError as error:
            return _error(error, model, request)
        except PostroadError as problem:
            if problem.status >= 500:
                log.warning("aws_request_failed", request_id=request.request_id, code=problem.code, detail=problem.detail)
            known = sns_error(problem) if model is not None and model.service == "sns" else None
            return _error(known or aws_error(problem), model, request)
        except ClientDisconnected:
            raise
        except Exception:
            log.error("aws_request_crashed", request_id=request.request_id, error=traceback.format_exc())
            return _error(AwsError("InternalFailure", "The request failed because of an internal error."), model, request)

    def _find(self, request: Request, form: Mapping[str, str] | None) -> Action:
        """The operation of a request. Raises AwsError."""
        if form is None:
            prefix, _, name = request.headers[_TARGET].decode("latin-1").partition(".")
            for service, known in self._actions.items():
                if service_model(service).target == prefix and name in known:
                    return known[name]
            raise AwsError("UnknownOperationException", f"The operation {name[:100]} is not known.", 404)
        name = form.get("Action", "")
        if not name:
            raise AwsError("MissingAction", "The request must contain the parameter Action.")
        found = [one[name] for one in self._actions.values() if name in one]
        version, service = form.get("Version"), signed_service(request.header(b"authorization"), form)
        found.sort(key=lambda one: one.operation.model.service != service)
        chosen = next((one for one in found if version in (None, one.operation.model.version)), None)
        if chosen is None:
            raise AwsError("InvalidAction", f"The action {name[:100]} is not valid for this endpoint.")
        return chosen

    async def _run(self, request: Request, action: Action, form: Mapping[str, str] | None) -> Response:
        operation = action.operation
        if action.allows_unsigned and form is not None and not is_credential_given(request):
            return await self._run_unsigned(request, action, form)
        identity = await self._authentication.identify(request, operation.model.service)
        values: Values = {}
        queue_account, queue, named, fault = "", "", _NO_NAME, None
        try:
            values = _input(request, action, form)
            if action.has_queue:
                queue_account, queue = queue_path(values["QueueUrl"])
                request.parameters = {"queue": queue}
            named = _named(action, values)
            if named.topic:
                request.parameters = {"topic": named.topic}
        except AwsError as error:  # reported to authorized callers only
            fault = error
        caller = await self._authenticator.authorize(request, action.route, identity.text, identity.caller)
        request.identify(caller, self._authenticator.watch)
        if fault is not None:
            raise fault
        account = await self._accounts.of(caller.tenant)
        if queue and (queue_account != account or not caller.may_use("queue", queue)):
            raise AwsError("QueueDoesNotExist", QUEUE_MISSING)
        if named.topic and (named.account != account or not caller.may_use("topic", named.topic)):
            raise topic_missing()
        _check_policy(identity, action, account, queue or named.topic or str(values.get(action.name, "")).rpartition(":")[2])
        call = Call(
            request,
            request.context,
            values,
            queue,
            identity,
            account,
            self._base_url(request),
            named.topic,
            named.subscription,
            request_form=form or {},
        )
        return await self._respond(request, action, call, is_json=form is None)

    async def _run_unsigned(self, request: Request, action: Action, form: Mapping[str, str]) -> Response:
        """A call with a token instead of a signature, for the tenant that its ARN names."""
        values = _input(request, action, form)
        named = _named(action, values)
        tenant = self._accounts.tenant(named.account)
        if tenant is None:
            raise topic_missing()
        caller = Caller(tenant, "", frozenset(), name="sns token")
        context = RequestContext(caller, request_id=request.request_id)
        identity = Identity(caller, named.region or DEFAULT_REGION, "")
        call = Call(
            request,
            context,
            values,
            "",
            identity,
            named.account,
            self._base_url(request),
            named.topic,
            named.subscription,
            is_signed=False,
            request_form=form,
        )
        return await self._respond(request, action, call, is_json=False)

    def _base_url(self, request: Request) -> str:
        return (self._public_url or f"{request.scheme}://{request.header(b'host') or 'localhost'}").rstrip("/")

    async def _respond(self, request: Request, action: Action, call: Call, *, is_json: bool) -> Response:
        result = await action.run(call)
        metrics.calls.labels(action.operation.model.service, action.operation.name).inc()
        return _result(action, result, request, is_json=is_json)


def _input(request: Request, action: Action, form: Mapping[str, str] | None) -> Values:
    """The input of the operation. Raises AwsError."""
    operation = action.operation
    values = json_protocol.decode(operation, request.body or b"") if form is None else query_protocol.decode(operation, form)
    if action.has_queue and "QueueUrl" not in values and request.path != "/":
        values["QueueUrl"] = request.path
    check_required(operation, values)
    return values


def _named(action: Action, values: Values) -> SnsName:
    """What the ARN of the call names; nothing if it has none. Raises AwsError."""
    arn = next((values[name] for name in action.arn.split() if values.get(name)), None)
    return _NO_NAME if arn is None else sns_name(arn, action.arn.split()[0])


def _check_policy(identity: Identity, action: Action, account: str, name_of_resource: str) -> None:
    """Raises AwsError if the policy of a session does not allow the operation."""
    if identity.policy is None or action.operation.model.service == "sts":
        return
    # A batch needs the permission of the single operation, as in AWS.
    name = action.operation.label.removesuffix("Batch")
    make_arn = topic_arn if action.operation.model.service == "sns" else queue_arn
    if not is_allowed(identity.policy, name, make_arn(identity.region, account, name_of_resource or "*")):
        raise AwsError("AccessDenied", f"The session policy does not allow the action {name} on this resource.")


def _result(action: Action, values: Values | None, request: Request, *, is_json: bool) -> Response:
    headers = [(b"x-amzn-requestid", request.request_id.encode())]
    if is_json:
        return Response(json_protocol.encode(values), media=json_protocol.MEDIA, headers=headers)
    body = query_protocol.encode(action.operation, values, request.request_id)
    return Response(body, media=query_protocol.MEDIA, headers=headers)


def error_response(problem: PostroadError, request: Request | None, request_id: str) -> Response:
    """The response to an error that was raised before or outside the handler."""
    return _respond(aws_error(problem), None, request is None or _TARGET in request.headers, request_id)


def _error(error: AwsError, model: ServiceModel | None, request: Request) -> Response:
    return _respond(error, model, _TARGET in request.headers, request.request_id)


def _respond(error: AwsError, model: ServiceModel | None, is_json: bool, request_id: str) -> Response:
    model = model or service_model(_DEFAULT_SERVICE)
    view = view_of(error, model)
    metrics.errors.labels(view.code if view.is_modelled or view.status != 400 else "other").inc()
    headers = [(b"x-amzn-requestid", request_id.encode())]
    if view.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(view.retry_after))).encode()))
    if is_json:
        body, more = json_protocol.encode_error(view, model)
        return Response(body, view.status, json_protocol.MEDIA, [*headers, *more])
    return Response(query_protocol.encode_error(view, model, request_id), view.status, query_protocol.MEDIA, headers)
