"""HTTP routes of stream subscriptions: the reserved part (`__ds`) of the Durable Streams protocol.

Errors are problem responses with the protocol's `error` object added. The holder of a wake sends its token instead of a key:
those routes need no scope, and the token names the tenant.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from postroad.api.access import TenantDisabled
from postroad.api.stream_subscriptions import (
    AddStreamsRequest,
    Claim,
    ClaimRequest,
    JwkSet,
    LeaseHeld,
    ListedStreamSubscriptionPage,
    NewStreamSubscription,
    NothingPending,
    OffsetAck,
    OffsetRefused,
    StreamSubscription,
    StreamSubscriptionQuery,
    SubscriptionNotFound,
    WakeAcked,
    WakeFenced,
    WakeRequest,
    WebhookRefused,
)
from postroad.http.problems import problem_response
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Handler, Route
from postroad.kernel.errors import (
    AlreadyExists,
    EngineUnavailable,
    InvalidParameter,
    PostroadError,
    PreconditionFailed,
    Unauthenticated,
)
from postroad.kernel.identity import Scope
from postroad.kernel.json import encode
from postroad.stream_subscriptions import rules
from postroad.stream_subscriptions.keys import SigningKeys
from postroad.stream_subscriptions.protocol_codes import protocol_code
from postroad.stream_subscriptions.records import SubscriptionRecord, listed, subscription_of
from postroad.stream_subscriptions.service import StreamSubscriptions, WakeRef

PublicBase = Callable[[Request], str]

_TAG = "Stream subscriptions"
_JWKS_MEDIA = "application/jwk-set+json"
_ROOTS = ("/v1/stream", "/v1/{project}/stream")
_TOKEN = "Send the token of the wake as the bearer token."  # noqa: S105  # documentation, not a token


class SubscriptionRoutes:
    def __init__(self, subscriptions: StreamSubscriptions, keys: SigningKeys, public_base: PublicBase) -> None:
        self._subscriptions, self._keys, self._public_base = subscriptions, keys, public_base

    def table(self) -> Sequence[Route]:
        return [route for root in _ROOTS for route in self._routes(f"{root}/__ds")]

    def _routes(self, root: str) -> list[Route]:
        one = f"{root}/subscriptions/{{subscription}}"
        missing = (SubscriptionNotFound, InvalidParameter, EngineUnavailable)
        by_token = (*missing, Unauthenticated, TenantDisabled, WakeFenced)

        def route(method: str, path: str, handler: Handler, scope: Scope | None, summary: str, **more: Any) -> Route:
            allows_anonymous = scope is not None  # for open installations; others refuse callers without credentials
            return Route(
                method, path, _with_protocol_error(handler), scope, summary, _TAG, allows_anonymous=allows_anonymous, **more
            )

        return [
            Route(
                "GET",
                f"{root}/subscriptions",
                self.list_stream_subscriptions,
                Scope.READ,
                "List subscriptions",
                _TAG,
                query=StreamSubscriptionQuery,
                response=ListedStreamSubscriptionPage,
                errors=(InvalidParameter,),
                allows_admin=True,
                description="In the order of their ids. A key that is restricted to some streams sees those whose streams it may "
                "use.",
                sdk="stream_subscriptions.list",
            ),
            route(
                "PUT",
                one,
                self.put_stream_subscription,
                Scope.WRITE,
                "Create a subscription",
                body=NewStreamSubscription,
                response=StreamSubscription,
                status=201,
                other_statuses=(200,),
                errors=(*missing, WebhookRefused, AlreadyExists, PreconditionFailed),
                description="If the subscription exists with the same properties, the response is 200; with other properties it "
                "is 409. Data that a stream has at this time counts as acknowledged. In a pattern, `*` is one path segment and "
                "`**` any number of segments.",
            ),
            route(
                "GET",
                one,
                self.get_stream_subscription,
                Scope.READ,
                "Show a subscription",
                response=StreamSubscription,
                errors=missing,
                sdk="stream_subscriptions.get",
            ),
            route(
                "DELETE",
                one,
                self.delete_stream_subscription,
                Scope.WRITE,
                "Delete a subscription",
                status=204,
                errors=missing,
                description="Does nothing if it does not exist.",
                sdk="stream_subscriptions.delete",
            ),
            route(
                "POST",
                f"{one}/streams",
                self.add_subscription_streams,
                Scope.WRITE,
                "Add streams to a subscription",
                body=AddStreamsRequest,
                status=204,
                errors=missing,
                description="Those already subscribed keep their acknowledged offsets.",
                sdk="stream_subscriptions.add_streams",
                sdk_arguments=(("streams", "streams"),),
                repeatable=True,
            ),
            route(
                "DELETE",
                f"{one}/streams/{{stream}}",
                self.remove_subscription_stream,
                Scope.WRITE,
                "Remove a named stream from a subscription",
                matches_rest=True,
                status=204,
                errors=missing,
                sdk="stream_subscriptions.remove_stream",
            ),
            route(
                "POST",
                f"{one}/claim",
                self.claim_wake,
                Scope.CONSUME,
                "Claim the pending data of a subscription",
                body=ClaimRequest,
                response=Claim,
                errors=(*missing, LeaseHeld, NothingPending),
                description="If the response is lost, another wake follows when the lease has expired.",
                sdk="stream_subscriptions.claim",
                sdk_arguments=(("worker", "worker"),),
            ),
            route(
                "POST",
                f"{one}/callback",
                self.call_back,
                None,
                "Acknowledge the wake of a webhook",
                body=WakeRequest,
                token_tenant=self._token_tenant,
                response=WakeAcked,
                errors=(*by_token, OffsetRefused),
                description=_TOKEN,
            ),
            route(
                "POST",
                f"{one}/ack",
                self.acknowledge_wake,
                None,
                "Acknowledge a claimed wake",
                body=WakeRequest,
                token_tenant=self._token_tenant,
                response=WakeAcked,
                errors=(*by_token, OffsetRefused),
                description=f"{_TOKEN} Without `done` the lease is renewed.",
            ),
            route(
                "POST",
                f"{one}/release",
                self.release_wake,
                None,
                "Release a claimed wake",
                body=WakeRequest,
                token_tenant=self._token_tenant,
                status=204,
                errors=by_token,
                description=_TOKEN,
            ),
            route(
                "GET",
                f"{root}/jwks.json",
                self.get_webhook_keys,
                None,
                "Show the public keys of webhook signatures",
                response=JwkSet,
                media=_JWKS_MEDIA,
            ),
        ]

    async def list_stream_subscriptions(self, request: Request) -> Response:
        query: StreamSubscriptionQuery = request.query
        page = self._subscriptions.page(request.caller, query.prefix or "", query.cursor, query.limit)
        items = [listed(record) for record in page.items]
        return Response(ListedStreamSubscriptionPage(items=items, next_cursor=page.next_cursor))

    async def put_stream_subscription(self, request: Request) -> Response:
        wanted: NewStreamSubscription = request.body
        config = rules.config_of(
            kind=wanted.type,
            pattern=wanted.pattern,
            streams=wanted.streams or (),
            webhook_url=wanted.webhook.url if wanted.webhook else None,
            wake_stream=wanted.wake_stream,
            lease_ttl_ms=wanted.lease_ttl_ms,
            description=wanted.description,
        )
        record, is_new = await self._subscriptions.create(request.context, _id(request), config, self._root(request))
        return Response(self._shown(record), 201 if is_new else 200)

    async def get_stream_subscription(self, request: Request) -> Response:
        if Scope.READ not in request.caller.scopes:  # without credentials: streams may be public, subscriptions are not
            raise request.refusal()
        record = await self._subscriptions.find(request.caller, _id(request))
        return Response(self._shown(record))

    async def delete_stream_subscription(self, request: Request) -> Response:
        await self._subscriptions.delete(request.context, _id(request))
        return Response(status=204)

    async def add_subscription_streams(self, request: Request) -> Response:
        wanted: AddStreamsRequest = request.body
        if not wanted.streams:
            raise InvalidParameter("streams must be a list of at least one path")
        await self._subscriptions.add_streams(request.context, _id(request), rules.stream_paths(wanted.streams))
        return Response(status=204)

    async def remove_subscription_stream(self, request: Request) -> Response:
        path = rules.stream_path(request.parameters["stream"])
        await self._subscriptions.remove_stream(request.context, _id(request), path)
        return Response(status=204)

    async def claim_wake(self, request: Request) -> Response:
        wanted: ClaimRequest = request.body
        record, streams = await self._subscriptions.claim(request.context, _id(request), wanted.worker)
        return Response(
            Claim(
                wake_id=record.wake.id if record.wake else "",
                generation=record.generation,
                token=self._subscriptions.token(record),
                streams=streams,
                lease_ttl_ms=record.lease_ttl_ms,
            )
        )

    async def call_back(self, request: Request) -> Response:
        return await self._acknowledge(request, is_pull=False)

    async def acknowledge_wake(self, request: Request) -> Response:
        return await self._acknowledge(request, is_pull=True)

    async def _acknowledge(self, request: Request, *, is_pull: bool) -> Response:
        wanted: WakeRequest = request.body
        wake, acks = _wake(request), _offsets(wanted.acks or ())
        return Response(WakeAcked(await self._subscriptions.acknowledge(wake, acks, is_done=wanted.done, is_pull=is_pull)))

    async def release_wake(self, request: Request) -> Response:
        await self._subscriptions.release(_wake(request))
        return Response(status=204)

    async def get_webhook_keys(self, _request: Request) -> Response:
        headers = [(b"cache-control", b"public, max-age=300")]
        return Response(self._keys.published, media=_JWKS_MEDIA.encode(), headers=headers)

    def _token_tenant(self, request: Request) -> str | None:
        try:
            return self._subscriptions.token_tenant(_token(request))
        except Unauthenticated:
            return None  # the handler refuses the request

    def _shown(self, record: SubscriptionRecord) -> StreamSubscription:
        return subscription_of(record, self._keys.kid, self._subscriptions.root_of(record))

    def _root(self, request: Request) -> str:
        """Base URL of the streams API as the caller reached it, for the callback URL of webhooks."""
        project = request.parameters.get("project")
        return self._public_base(request).rstrip("/") + (f"/v1/{project}/stream" if project else "/v1/stream")


def _with_protocol_error(handler: Handler) -> Handler:
    """Add the protocol's `error` object to problem responses."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except PostroadError as error:
            response = problem_response(error, request.request_id)
            more = error.extra.get("error")
            code, message = protocol_code(error), error.detail or error.title
            added = {"code": code, "message": message, **(more if isinstance(more, dict) else {})}
            response.body = encode({**msgspec.to_builtins(response.body), "error": added})
            return response

    return handle


def _id(request: Request) -> str:
    return rules.subscription_id(request.parameters["subscription"])


def _wake(request: Request) -> WakeRef:
    wanted: WakeRequest = request.body
    return WakeRef(_id(request), _token(request), wanted.wake_id, wanted.generation, request.parameters.get("project"))


def _token(request: Request) -> str:
    scheme, _, text = (request.header(b"authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise Unauthenticated("send the token of the wake as 'Authorization: Bearer <token>'")
    return text.strip()


def _offsets(acks: Sequence[OffsetAck]) -> list[tuple[str, str]]:
    if len(acks) > rules.LINKS_MAX:
        raise InvalidParameter(f"a request has at most {rules.LINKS_MAX} acks")
    return [((one.stream or one.path or "").strip("/"), one.offset) for one in acks]
