"""Sessions over HTTP, as the seed has them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.circuit_breaker import BreakerState
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import (
    ContentTypeMismatch,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    SessionNotFound,
    StreamClosed,
    StreamGone,
    StreamNotFound,
    TooLarge,
)
from postroad.kernel.identity import Scope
from postroad.kernel.names import STREAM_CHARS_MAX, stream_id
from postroad.sessions.records import STREAM_PREFIX
from postroad.sessions.rules import SESSION, is_pattern, session_id, source_name
from postroad.sessions.service import Published, Sessions, SessionView
from postroad.streams.offsets import offset_text
from postroad.streams.protocol_headers import outcome_headers
from postroad.streams.routes import APPEND_HEADERS, append_request_of
from postroad.streams.store import Name

_TAG = "sessions"
SessionId = Annotated[str, Meta(pattern=f"^{SESSION.pattern}$", description="A UUID is a good one.")]
StreamName = Annotated[
    str, Meta(min_length=1, max_length=STREAM_CHARS_MAX, description="A stream's id, or a pattern such as `chat:*`.")
]


class Membership(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    stream_id: StreamName


class NewSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId
    stream_id: StreamName
    envelope: Annotated[
        bool, Meta(description="Each message says which stream and offset it comes from; then the session is JSON.")
    ] = False


class SubscribedAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    stream_id: str
    session_stream_path: Annotated[str, Meta(description="Where the session's messages are read.")]
    expires_at: Annotated[int, Meta(description="Milliseconds since 1970.")]
    is_new_session: bool


class UnsubscribedAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    stream_id: str
    unsubscribed: bool = True


class SubscriptionView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    stream_id: str
    subscribed_at: Timestamp
    envelope: bool
    outstanding: Annotated[int, Meta(description="Messages that the session still lacks of this stream.")] | UnsetType = UNSET


class SessionAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    session_stream_path: str
    content_type: str
    created_at: Timestamp
    expires_at: Annotated[int, Meta(description="Milliseconds since 1970.")]
    next_offset: str
    subscriptions: list[SubscriptionView]


class TouchedAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    expires_at: int


class FanoutAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    stream_id: str
    subscribers: int
    done_offset: Annotated[str, Meta(description="Everything up to here is with everyone.")]
    outstanding: int
    breaker: Annotated[BreakerState, Meta(description="As the gateway that answers sees it.")]


_OUTSTANDING_MAX = 100  # subscriptions of one session for which it is looked up


class SessionRoutes:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def table(self) -> list[Route]:
        root = "/v1/{project}"
        missing = (SessionNotFound, EngineUnavailable)
        appending = (StreamClosed, ContentTypeMismatch, SequenceConflict, ProducerGap, ProducerFenced, TooLarge)
        return [
            Route(
                "POST",
                f"{root}/subscribe",
                self.subscribe,
                Scope.READ,
                "Subscribe a session to a stream or a pattern of streams",
                _TAG,
                body=NewSubscription,
                response=SubscribedAnswer,
                errors=(StreamNotFound, StreamGone, ContentTypeMismatch, InvalidParameter, PreconditionFailed, EngineUnavailable),
                takes_jwt=True,
                or_scope=Scope.WRITE,
                description="Makes the session if there is none, and lets it live on. It gets what is written from now on.",
            ),
            Route(
                "DELETE",
                f"{root}/unsubscribe",
                self.unsubscribe,
                Scope.WRITE,
                "End a subscription",
                _TAG,
                body=Membership,
                response=UnsubscribedAnswer,
                errors=(*missing, InvalidParameter),
                takes_jwt=True,
            ),
            Route(
                "POST",
                f"{root}/publish/{{stream}}",
                self.publish_to_stream,
                Scope.WRITE,
                "Append to a stream, for everyone who subscribes to it",
                _TAG,
                status=204,
                more_statuses=(200,),
                media="*/*",
                headers=APPEND_HEADERS,
                errors=(StreamNotFound, StreamGone, InvalidParameter, EngineUnavailable, *appending),
                takes_jwt=True,
                takes_bytes=True,
                takes_rest=True,
                description="`Stream-Fanout-Mode`, `-Count`, `-Successes` and `-Failures` say what became of the copies so far.",
            ),
            Route(
                "GET",
                f"{root}/fanout/{{stream}}",
                self.show_fanout,
                Scope.READ,
                "How far a stream's fan-out has come",
                _TAG,
                response=FanoutAnswer,
                errors=(StreamNotFound, StreamGone, InvalidParameter, EngineUnavailable),
                takes_jwt=True,
                takes_rest=True,
            ),
            Route(
                "GET",
                f"{root}/session/{{session}}",
                self.show_session,
                Scope.READ,
                "A session and what it subscribes to",
                _TAG,
                response=SessionAnswer,
                errors=(*missing, InvalidParameter),
                takes_jwt=True,
                or_scope=Scope.WRITE,
            ),
            Route(
                "POST",
                f"{root}/session/{{session}}/touch",
                self.touch_session,
                Scope.READ,
                "Let a session live on",
                _TAG,
                response=TouchedAnswer,
                errors=(*missing, InvalidParameter),
                takes_jwt=True,
                or_scope=Scope.WRITE,
            ),
            Route(
                "DELETE",
                f"{root}/session/{{session}}",
                self.delete_session,
                Scope.WRITE,
                "Delete a session and its stream",
                _TAG,
                status=204,
                errors=(*missing, InvalidParameter),
                takes_jwt=True,
            ),
        ]

    async def subscribe(self, request: Request) -> Response:
        wanted: NewSubscription = request.body
        session, source = session_id(wanted.session_id), source_name(wanted.stream_id)
        _check_stream(request, source)
        done = await self._sessions.subscribe(request.caller.tenant, session, source, envelope=wanted.envelope)
        answer = SubscribedAnswer(
            session_id=session,
            stream_id=source,
            session_stream_path=_path(request, session),
            expires_at=done.expires_at_ms,
            is_new_session=done.is_new,
        )
        return Response(answer)

    async def unsubscribe(self, request: Request) -> Response:
        wanted: Membership = request.body
        session, source = session_id(wanted.session_id), source_name(wanted.stream_id)
        _check_stream(request, source)
        await self._sessions.unsubscribe(request.caller.tenant, session, source)
        return Response(UnsubscribedAnswer(session_id=session, stream_id=source))

    async def publish_to_stream(self, request: Request) -> Response:
        name = Name(request.caller.tenant, stream_id(request.parameters["stream"]))
        wish = append_request_of(request)
        published = await self._sessions.publish(name, wish, key_id=request.caller.key_id)
        is_new_data = wish.claim is not None and wish.data is not None and not published.outcome.is_duplicate
        headers = [*outcome_headers(published.outcome), *_fanout_headers(published)]
        return Response(b"", 200 if is_new_data else 204, b"text/plain", headers)

    async def show_fanout(self, request: Request) -> Response:
        name = Name(request.caller.tenant, stream_id(request.parameters["stream"]))
        view = await self._sessions.fan(name)
        answer = FanoutAnswer(
            stream_id=name.id,
            subscribers=view.subscribers,
            done_offset=offset_text(view.done),
            outstanding=view.outstanding,
            breaker=view.breaker,
        )
        return Response(answer)

    async def show_session(self, request: Request) -> Response:
        session = _session(request)
        view = await self._sessions.look(request.caller.tenant, session)
        return Response(
            SessionAnswer(
                session_id=session,
                session_stream_path=_path(request, session),
                content_type=view.record.content_type,
                created_at=rfc3339(view.record.created_at_ms),
                expires_at=view.stream.expires_at_ms or 0,
                next_offset=offset_text(view.tail),
                subscriptions=await self._subscriptions(request.caller.tenant, view),
            )
        )

    async def _subscriptions(self, tenant: str, view: SessionView) -> list[SubscriptionView]:
        found: list[SubscriptionView] = []
        for source, one in view.record.subscriptions.items():
            outstanding: int | UnsetType = UNSET
            if not is_pattern(source) and len(found) < _OUTSTANDING_MAX:
                outstanding = await self._sessions.lacking(Name(tenant, source))
            found.append(
                SubscriptionView(
                    stream_id=source, subscribed_at=rfc3339(one.since_ms), envelope=one.envelope, outstanding=outstanding
                )
            )
        return found

    async def touch_session(self, request: Request) -> Response:
        session = _session(request)
        return Response(TouchedAnswer(session_id=session, expires_at=await self._sessions.touch(request.caller.tenant, session)))

    async def delete_session(self, request: Request) -> Response:
        await self._sessions.delete(request.caller.tenant, _session(request))
        return Response(status=204)


def _session(request: Request) -> str:
    session = session_id(request.parameters["session"])
    _check_stream(request, STREAM_PREFIX + session)
    return session


def _check_stream(request: Request, source: str) -> None:
    if not request.caller.may_use("stream", source):
        raise Forbidden(f"the key may not use the stream {source[:100]!r}")


def _path(request: Request, session: str) -> str:
    return f"/v1/{request.caller.tenant}/stream/{STREAM_PREFIX}{session}"


def _fanout_headers(published: Published) -> list[tuple[bytes, bytes]]:
    reached = published.reached
    return [
        (b"stream-fanout-mode", published.mode.value.encode()),
        (b"stream-fanout-count", str(reached.count).encode()),
        (b"stream-fanout-successes", str(reached.successes).encode()),
        (b"stream-fanout-failures", str(reached.count - reached.successes if published.mode == "inline" else 0).encode()),
    ]
