"""The reserved part (`__ds`) of the Durable Streams protocol over HTTP.

Errors are problems as everywhere, with the protocol's own `error` beside. Who holds a wake shows its token, not a key: those
routes are open to anyone, and the token says whose the wake is.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from postroad.api.access import TenantDisabled
from postroad.http.problems import problem_response
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Handler, Route
from postroad.kernel.errors import (
    AlreadyExists,
    EngineUnavailable,
    InvalidParameter,
    LeaseHeld,
    NothingPending,
    OffsetRefused,
    PostroadError,
    PreconditionFailed,
    SubscriptionNotFound,
    Unauthenticated,
    WakeFenced,
    WebhookRefused,
)
from postroad.kernel.identity import MISSING_CREDENTIALS_HINT, Scope
from postroad.kernel.json import encode
from postroad.stream_subscriptions import rules
from postroad.stream_subscriptions.errors import word
from postroad.stream_subscriptions.keys import JwkSet, SigningKeys
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.service import Subscriptions
from postroad.stream_subscriptions.views import (
    AckInput,
    AckView,
    ClaimInput,
    ClaimView,
    StreamsInput,
    SubscriptionInput,
    SubscriptionView,
    WakeInput,
    subscription_view,
)

PublicBase = Callable[[Request], str]

_TAG = "Stream subscriptions"
_JWKS_MEDIA = "application/jwk-set+json"
_ROOTS = ("/v1/stream", "/v1/{project}/stream")


class SubscriptionRoutes:
    def __init__(self, subscriptions: Subscriptions, keys: SigningKeys, public_base: PublicBase) -> None:
        self._subscriptions, self._keys, self._public_base = subscriptions, keys, public_base

    def table(self) -> Sequence[Route]:
        return [route for root in _ROOTS for route in self._at(f"{root}/__ds")]

    def _at(self, root: str) -> list[Route]:
        one = f"{root}/subscriptions/{{subscription}}"
        missing = (SubscriptionNotFound, InvalidParameter, EngineUnavailable)
        by_token = (*missing, Unauthenticated, TenantDisabled, WakeFenced)

        def route(method: str, path: str, handler: Handler, scope: Scope | None, summary: str, **more: Any) -> Route:
            is_for_anyone = scope is not None  # where the installation is open; where not, the gate refuses
            return Route(method, path, _spoken(handler), scope, summary, _TAG, takes_anyone=is_for_anyone, **more)

        return [
            route(
                "PUT",
                one,
                self.put_subscription,
                Scope.WRITE,
                "Subscribe to streams, or make sure of it",
                body=SubscriptionInput,
                response=SubscriptionView,
                status=201,
                more_statuses=(200,),
                errors=(*missing, WebhookRefused, AlreadyExists, PreconditionFailed),
                description="The same call again answers 200, one that wants something else 409. Streams that exist are followed "
                "from their ends on; in a pattern `*` is one segment of a path and `**` any number.",
            ),
            route(
                "GET", one, self.get_subscription, Scope.READ, "Show a subscription", response=SubscriptionView, errors=missing
            ),
            route("DELETE", one, self.delete_subscription, Scope.WRITE, "Delete a subscription", status=204, errors=missing),
            route(
                "POST",
                f"{one}/streams",
                self.add_subscription_streams,
                Scope.WRITE,
                "Follow more streams",
                body=StreamsInput,
                status=204,
                errors=missing,
            ),
            route(
                "DELETE",
                f"{one}/streams/{{stream}}",
                self.remove_subscription_stream,
                Scope.WRITE,
                "No longer follow a stream that was named",
                takes_rest=True,
                status=204,
                errors=missing,
            ),
            route(
                "POST",
                f"{one}/claim",
                self.claim_wake,
                Scope.CONSUME,
                "Take up what is to be done",
                body=ClaimInput,
                response=ClaimView,
                errors=(*missing, LeaseHeld, NothingPending),
            ),
            route(
                "POST",
                f"{one}/callback",
                self.call_back,
                None,
                "Say how far a webhook's wake has come",
                body=WakeInput,
                response=AckView,
                errors=(*by_token, OffsetRefused),
                description="With the wake's own token as the bearer.",
            ),
            route(
                "POST",
                f"{one}/ack",
                self.acknowledge_wake,
                None,
                "Say how far a claimed wake has come",
                body=WakeInput,
                response=AckView,
                errors=(*by_token, OffsetRefused),
                description="With the claim's token as the bearer. Without `done` the lease begins anew.",
            ),
            route(
                "POST",
                f"{one}/release",
                self.release_wake,
                None,
                "Give a claimed wake back",
                body=WakeInput,
                status=204,
                errors=by_token,
                description="With the claim's token as the bearer.",
            ),
            route(
                "GET",
                f"{root}/jwks.json",
                self.get_webhook_keys,
                None,
                "The keys that webhooks are signed with",
                response=JwkSet,
                media=_JWKS_MEDIA,
            ),
        ]

    async def put_subscription(self, request: Request) -> Response:
        wanted: SubscriptionInput = request.body
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
        return Response(self._view(record), 201 if is_new else 200)

    async def get_subscription(self, request: Request) -> Response:
        if Scope.READ not in request.caller.scopes:  # nobody in particular: a stream may be public, a subscription is not
            raise Unauthenticated(MISSING_CREDENTIALS_HINT)
        return Response(self._view(await self._subscriptions.find(request.caller, _id(request))))

    async def delete_subscription(self, request: Request) -> Response:
        await self._subscriptions.delete(request.context, _id(request))
        return Response(status=204)

    async def add_subscription_streams(self, request: Request) -> Response:
        wanted: StreamsInput = request.body
        if not wanted.streams:
            raise InvalidParameter("streams is a list of at least one path")
        await self._subscriptions.add_streams(request.context, _id(request), rules.stream_paths(wanted.streams))
        return Response(status=204)

    async def remove_subscription_stream(self, request: Request) -> Response:
        path = rules.stream_path(request.parameters["stream"])
        await self._subscriptions.remove_stream(request.context, _id(request), path)
        return Response(status=204)

    async def claim_wake(self, request: Request) -> Response:
        wanted: ClaimInput = request.body
        record, streams = await self._subscriptions.claim(request.caller, _id(request), wanted.worker)
        return Response(
            ClaimView(
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
        given: WakeInput = request.body
        has_more = await self._subscriptions.acknowledge(
            _id(request),
            _token(request),
            wake_id=given.wake_id,
            generation=given.generation,
            acks=_offsets(given.acks or ()),
            is_done=given.done,
            is_pull=is_pull,
            project=request.parameters.get("project"),
        )
        return Response(AckView(has_more))

    async def release_wake(self, request: Request) -> Response:
        given: WakeInput = request.body
        await self._subscriptions.release(
            _id(request),
            _token(request),
            wake_id=given.wake_id,
            generation=given.generation,
            project=request.parameters.get("project"),
        )
        return Response(status=204)

    async def get_webhook_keys(self, _request: Request) -> Response:
        headers = [(b"cache-control", b"public, max-age=300")]
        return Response(self._keys.published, media=_JWKS_MEDIA.encode(), headers=headers)

    def _view(self, record: SubscriptionRecord) -> SubscriptionView:
        return subscription_view(record, self._keys.kid)

    def _root(self, request: Request) -> str:
        """Where this API is, as the caller reached us: what a webhook is to call back by."""
        project = request.parameters.get("project")
        return self._public_base(request).rstrip("/") + (f"/v1/{project}/stream" if project else "/v1/stream")


def _spoken(handler: Handler) -> Handler:
    """The handler, with its errors said in the protocol's words too."""

    @functools.wraps(handler)
    async def speaking(request: Request) -> Response:
        try:
            return await handler(request)
        except PostroadError as error:
            response = problem_response(error, request.request_id)
            more = error.extra.get("error")
            said = {"code": word(error), "message": error.detail or error.title, **(more if isinstance(more, dict) else {})}
            response.body = encode({**msgspec.to_builtins(response.body), "error": said})
            return response

    return speaking


def _id(request: Request) -> str:
    return rules.subscription_id(request.parameters["subscription"])


def _token(request: Request) -> str:
    scheme, _, text = (request.header(b"authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise Unauthenticated("send the wake's token as 'Authorization: Bearer <token>'")
    return text.strip()


def _offsets(acks: Sequence[AckInput]) -> list[tuple[str, str]]:
    if len(acks) > rules.LINKS_MAX:
        raise InvalidParameter(f"at most {rules.LINKS_MAX} acks at once")
    return [((one.stream or one.path or "").strip("/"), one.offset) for one in acks]
