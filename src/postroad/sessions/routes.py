"""HTTP routes of sessions."""

from typing import Any

from postroad.api.sessions import (
    Fanout,
    ListedSession,
    ListedSessionPage,
    Session,
    SessionListQuery,
    SessionNotFound,
    SessionSubscription,
    Subscribed,
    SubscribeRequest,
    Touched,
    Unsubscribed,
    UnsubscribeRequest,
)
from postroad.api.streams import (
    ContentTypeMismatch,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Handler, Route
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import (
    EngineFull,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    PreconditionFailed,
    StorageQuotaExceeded,
    TooLarge,
)
from postroad.kernel.identity import Scope
from postroad.kernel.names import SESSION_PREFIX, stream_id
from postroad.sessions.rules import FanoutMode, is_pattern, session_id, source_id
from postroad.sessions.service import PublishResult, Sessions, SessionState
from postroad.streams.offsets import offset_text
from postroad.streams.protocol_headers import APPEND_HEADERS, outcome_headers, parse_append
from postroad.streams.store import StreamName

_TAG = "Sessions"
_BODY_IDS = (("session", "session_id"), ("stream", "stream_id"))
_OUTSTANDING_MAX = 100  # subscriptions of one session for which outstanding messages are counted


class SessionRoutes:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def table(self) -> list[Route]:
        root = "/v1/{project}"
        session_errors = (SessionNotFound, EngineUnavailable, InvalidParameter)
        stream_errors = (StreamNotFound, StreamGone, InvalidParameter, EngineUnavailable)
        storage_errors = (EngineFull, StorageQuotaExceeded)
        append_errors = (
            StreamClosed,
            ContentTypeMismatch,
            SequenceConflict,
            ProducerGap,
            ProducerFenced,
            TooLarge,
            *storage_errors,
        )
        return [
            Route(
                "POST",
                f"{root}/subscribe",
                self.subscribe,
                Scope.READ,
                "Subscribe a session to a stream or a pattern",
                _TAG,
                body=SubscribeRequest,
                response=Subscribed,
                errors=(*stream_errors, ContentTypeMismatch, PreconditionFailed, *storage_errors),
                accepts_jwt=True,
                alternative_scope=Scope.WRITE,
                body_ids=_BODY_IDS,
                description="Creates the session if it does not exist, and prolongs it otherwise. The session gets messages "
                "published from now on.",
            ),
            self._unsubscribe_route(
                "DELETE",
                self.unsubscribe,
                "Messages already in the session stay. Repeating the call has no effect.",
            ),
            self._unsubscribe_route(
                "POST",
                self.unsubscribe_by_post,
                "Like `DELETE`, for clients and proxies that send no body with it. Repeating the call has no effect.",
                action="unsubscribe",
                sdk="sessions.unsubscribe",
                sdk_arguments=(("session_id", "session"), ("stream_id", "stream")),
                cli=Command("sessions unsubscribe", done="unsubscribed {session} from {stream}"),
                repeatable=True,
            ),
            Route(
                "POST",
                f"{root}/publish/{{stream}}",
                self.publish_to_stream,
                Scope.WRITE,
                "Append to a stream and copy to all subscribed sessions",
                _TAG,
                status=204,
                other_statuses=(200,),
                media="*/*",
                headers=APPEND_HEADERS,
                errors=(*stream_errors, *append_errors, *storage_errors),
                accepts_jwt=True,
                raw_body=True,
                matches_rest=True,
                action="publish",
                description="`Stream-Fanout-Mode`, `-Count`, `-Successes` and `-Failures` describe the copies made so far.",
            ),
            Route(
                "GET",
                f"{root}/fanout/{{stream}}",
                self.get_fanout,
                Scope.READ,
                "Show the progress of a stream's fan-out",
                _TAG,
                response=Fanout,
                errors=stream_errors,
                accepts_jwt=True,
                matches_rest=True,
                sdk="sessions.fanout",
                cli=Command("sessions fanout"),
            ),
            Route(
                "GET",
                f"{root}/sessions",
                self.list_sessions,
                Scope.READ,
                "List sessions",
                _TAG,
                query=SessionListQuery,
                response=ListedSessionPage,
                errors=(InvalidParameter, EngineUnavailable),
                accepts_jwt=True,
                alternative_scope=Scope.WRITE,
                allows_admin=True,
                description="In the order of their ids, without expired ones. A key that is restricted to some streams sees the "
                "sessions whose streams (`session:<id>`) it may use. A page may have fewer items than `limit`; the list ends "
                "where `nextCursor` is missing.",
                sdk="sessions.list",
                cli=Command(
                    "sessions list",
                    ("session_id", "subscriptions", "appends", "last_activity_at", "expires_at_ms"),
                ),
            ),
            Route(
                "GET",
                f"{root}/session/{{session}}",
                self.get_session,
                Scope.READ,
                "Show a session and its subscriptions",
                _TAG,
                response=Session,
                errors=session_errors,
                accepts_jwt=True,
                alternative_scope=Scope.WRITE,
                description="This does not prolong it.",
                sdk="sessions.get",
                cli=Command("sessions show"),
            ),
            Route(
                "POST",
                f"{root}/session/{{session}}/touch",
                self.touch_session,
                Scope.READ,
                "Prolong a session",
                _TAG,
                response=Touched,
                errors=session_errors,
                accepts_jwt=True,
                alternative_scope=Scope.WRITE,
                description="It then expires after the lifetime of a new one. Reading its stream does not prolong it.",
                sdk="sessions.touch",
                cli=Command("sessions touch"),
                repeatable=True,
            ),
            Route(
                "DELETE",
                f"{root}/session/{{session}}",
                self.delete_session,
                Scope.WRITE,
                "Delete a session and its stream",
                _TAG,
                status=204,
                errors=session_errors,
                accepts_jwt=True,
                description="Its source streams stay.",
                sdk="sessions.delete",
                cli=Command(
                    "sessions delete", confirm="Delete {session} with its stream and subscriptions?", done="deleted {session}"
                ),
            ),
        ]

    def _unsubscribe_route(self, method: str, handler: Handler, description: str, **more: Any) -> Route:
        return Route(
            method,
            "/v1/{project}/unsubscribe",
            handler,
            Scope.WRITE,
            "Unsubscribe a session from a stream or a pattern",
            _TAG,
            body=UnsubscribeRequest,
            response=Unsubscribed,
            errors=(SessionNotFound, EngineUnavailable, InvalidParameter),
            accepts_jwt=True,
            body_ids=_BODY_IDS,
            description=description,
            **more,
        )

    async def subscribe(self, request: Request) -> Response:
        wanted: SubscribeRequest = request.body
        session, source = session_id(wanted.session_id), source_id(wanted.stream_id)
        _check_may_use(request, source)
        result = await self._sessions.subscribe(request.context, session, source, envelope=wanted.envelope)
        return Response(
            Subscribed(
                session_id=session,
                stream_id=source,
                session_stream_path=_stream_path(request, session),
                expires_at_ms=result.expires_at_ms,
                is_new_session=result.is_new,
            )
        )

    async def unsubscribe(self, request: Request) -> Response:
        wanted: UnsubscribeRequest = request.body
        session, source = session_id(wanted.session_id), source_id(wanted.stream_id)
        _check_may_use(request, source)
        await self._sessions.unsubscribe(request.context, session, source)
        return Response(Unsubscribed(session_id=session, stream_id=source))

    async def unsubscribe_by_post(self, request: Request) -> Response:
        return await self.unsubscribe(request)

    async def publish_to_stream(self, request: Request) -> Response:
        name, append = _stream(request), parse_append(request)
        result = await self._sessions.publish(request.context, name, append)
        is_new_data = append.claim is not None and append.data is not None and not result.outcome.is_duplicate
        headers = [*outcome_headers(result.outcome), *_fanout_headers(result)]
        return Response(b"", 200 if is_new_data else 204, b"text/plain", headers)

    async def get_fanout(self, request: Request) -> Response:
        name = _stream(request)
        progress = await self._sessions.fanout_progress(name)
        return Response(
            Fanout(
                stream_id=name.id,
                subscribers=progress.subscribers,
                done_offset=offset_text(progress.done),
                outstanding=progress.outstanding,
                breaker=progress.breaker,
            )
        )

    async def list_sessions(self, request: Request) -> Response:
        query: SessionListQuery = request.query
        caller = request.caller
        page = await self._sessions.page(
            caller.tenant, query.prefix or "", query.cursor, query.limit, lambda stream: caller.may_use("stream", stream)
        )
        items = [
            ListedSession(
                session_id=one.record.id,
                session_stream_path=_stream_path(request, one.record.id),
                content_type=one.record.content_type,
                created_at=rfc3339(one.record.created_at_ms),
                expires_at_ms=one.stream.snapshot.existing.expires_at_ms or 0,
                next_offset=offset_text(one.stream.snapshot.tail),
                subscriptions=len(one.record.subscriptions),
                appends=one.stream.appends,
                last_activity_at=rfc3339(one.stream.snapshot.used_at_ms),
            )
            for one in page.items
        ]
        return Response(ListedSessionPage(items=items, next_cursor=page.next_cursor))

    async def get_session(self, request: Request) -> Response:
        session = _session(request)
        state = await self._sessions.find(request.caller.tenant, session)
        return Response(
            Session(
                session_id=session,
                session_stream_path=_stream_path(request, session),
                content_type=state.record.content_type,
                created_at=rfc3339(state.record.created_at_ms),
                expires_at_ms=state.stream.expires_at_ms or 0,
                next_offset=offset_text(state.tail),
                subscriptions=await self._subscriptions(request.caller.tenant, state),
            )
        )

    async def _subscriptions(self, tenant: str, state: SessionState) -> list[SessionSubscription]:
        subscriptions: list[SessionSubscription] = []
        for source, one in state.record.subscriptions.items():
            outstanding: int | None = None
            if not is_pattern(source) and len(subscriptions) < _OUTSTANDING_MAX:
                outstanding = await self._sessions.outstanding(StreamName(tenant, source))
            subscriptions.append(
                SessionSubscription(
                    stream_id=source, subscribed_at=rfc3339(one.since_ms), envelope=one.envelope, outstanding=outstanding
                )
            )
        return subscriptions

    async def touch_session(self, request: Request) -> Response:
        session = _session(request)
        return Response(Touched(session_id=session, expires_at_ms=await self._sessions.touch(request.context, session)))

    async def delete_session(self, request: Request) -> Response:
        await self._sessions.delete(request.context, _session(request))
        return Response(status=204)


def _session(request: Request) -> str:
    session = session_id(request.parameters["session"])
    _check_may_use(request, SESSION_PREFIX + session)
    return session


def _stream(request: Request) -> StreamName:
    return StreamName(request.caller.tenant, stream_id(request.parameters["stream"]))


def _check_may_use(request: Request, source: str) -> None:
    if not request.caller.may_use("stream", source):
        raise Forbidden(f"the key may not use the stream {source[:100]!r}")


def _stream_path(request: Request, session: str) -> str:
    return f"/v1/{request.caller.tenant}/stream/{SESSION_PREFIX}{session}"


def _fanout_headers(result: PublishResult) -> list[tuple[bytes, bytes]]:
    fanout = result.fanout
    failures = fanout.failures + fanout.ended if result.mode is FanoutMode.INLINE else 0
    return [
        (b"stream-fanout-mode", result.mode.value.encode()),
        (b"stream-fanout-count", str(fanout.count).encode()),
        (b"stream-fanout-successes", str(fanout.successes).encode()),
        (b"stream-fanout-failures", str(failures).encode()),
    ]
