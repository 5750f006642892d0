"""Calls of `client.sessions`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.sessions import Fanout, ListedSession, ListedSessionPage, Session, Touched, Unsubscribed
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment, segments, tenant_segment


class SessionsCalls:
    @operation
    def unsubscribe(self, session: str, stream: str, *, project: str | None = None) -> Call[Unsubscribed]:
        """Unsubscribe a session from a stream or a pattern.

        Like `DELETE`, for clients and proxies that send no body with it. Repeating the call has no effect. Raises
        SessionNotFound, InvalidParameter.
        """
        body = body_of({"sessionId": session, "streamId": stream})
        return Call(method="POST", path=f"/v1/{tenant_segment(project)}/unsubscribe", body=body, response=Unsubscribed)

    @operation
    def fanout(self, stream: str, *, project: str | None = None) -> Call[Fanout]:
        """Show the progress of a stream's fan-out. Raises StreamNotFound, StreamGone, InvalidParameter."""
        return Call(method="GET", path=f"/v1/{tenant_segment(project)}/fanout/{segments(stream)}", response=Fanout)

    @pages
    def list(self, *, prefix: str | None = None, project: str | None = None, page_size: int = 100) -> Pages[ListedSession]:
        """List sessions.

        In the order of their ids, without expired ones. A key that is restricted to some streams sees the sessions whose
        streams (`session:<id>`) it may use. A page may have fewer items than `limit`; the list ends where `nextCursor` is
        missing. Raises InvalidParameter.
        """
        return Pages(
            call=Call(
                method="GET",
                path=f"/v1/{tenant_segment(project)}/sessions",
                query={"prefix": prefix, "limit": page_size},
                response=ListedSessionPage,
            )
        )

    @operation
    def get(self, session: str, *, project: str | None = None) -> Call[Session]:
        """Show a session and its subscriptions. This does not prolong it. Raises SessionNotFound, InvalidParameter."""
        return Call(method="GET", path=f"/v1/{tenant_segment(project)}/session/{segment(session)}", response=Session)

    @operation
    def touch(self, session: str, *, project: str | None = None) -> Call[Touched]:
        """Prolong a session.

        It then expires after the lifetime of a new one. Reading its stream does not prolong it. Raises SessionNotFound,
        InvalidParameter.
        """
        return Call(method="POST", path=f"/v1/{tenant_segment(project)}/session/{segment(session)}/touch", response=Touched)

    @operation
    def delete(self, session: str, *, project: str | None = None) -> Call[None]:
        """Delete a session and its stream. Its source streams stay. Raises SessionNotFound, InvalidParameter."""
        return Call(method="DELETE", path=f"/v1/{tenant_segment(project)}/session/{segment(session)}")


class Sessions(SessionsCalls, SyncNamespace):
    pass


class AsyncSessions(SessionsCalls, AsyncNamespace):
    pass
