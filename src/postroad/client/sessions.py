"""`client.sessions`: publish once to a stream, and each subscriber has a stream of its own to read.

`project` is the tenant that has the session. Without it, it is the client's `tenant` (POSTROAD_TENANT) or else the key's own, for
which the first call asks the server (`/v1/whoami`).
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from postroad.api.sessions import FannedOut, Fanout, Session, Subscribed, Touched, Unsubscribed
from postroad.client.calls import OWN_TENANT, AsyncNamespace, Call, Content, SyncNamespace, live, operation
from postroad.client.encoding import given, segment
from postroad.client.follower import Follower, Live
from postroad.client.stream_protocol import appended, content_of, content_of_messages, stream_id_in_url
from postroad.client.streams import follower


class SessionCalls:
    @operation
    def subscribe(
        self, stream: str, session: str | None = None, *, envelope: bool = False, project: str | None = None
    ) -> Call[Subscribed]:
        """From now on the session gets what is written to the stream, or to all that fit a pattern such as `chat:*`.

        A session that is not there is made; without an id it gets one that nobody can guess. One that is there lives on. With
        `envelope` each message says where it comes from: `{"stream", "offset", "messages"}`. Raises StreamNotFound,
        ContentTypeMismatch.
        """
        body = {"sessionId": session or str(uuid.uuid4()), "streamId": stream, "envelope": envelope}
        return Call(method="POST", path=f"{_root(project)}/subscribe", body=body, response=Subscribed)

    @operation
    def unsubscribe(self, session: str, stream: str, *, project: str | None = None) -> Call[Unsubscribed]:
        """Twice is the same as once. What the session has got already stays. Raises SessionNotFound."""
        body = {"sessionId": session, "streamId": stream}
        return Call(method="DELETE", path=f"{_root(project)}/unsubscribe", body=body, response=Unsubscribed)

    @operation
    def publish(
        self,
        stream: str,
        data: Any,
        *,
        content_type: str | None = None,
        seq: str | None = None,
        producer_id: str | None = None,
        producer_epoch: int = 0,
        producer_seq: int | None = None,
        project: str | None = None,
    ) -> Call[FannedOut]:
        """As `streams.append`, and every session that subscribes gets a copy: once, in order, now or a little later.

        With `producer_id` and `producer_seq` (0, 1, 2 …) it is sent again when its answer is lost, and stored once; without, it
        is not sent again. Raises what `streams.append` does, ProducerGap and ProducerFenced, never for a copy.
        """
        headers = given(**{"Stream-Seq": seq}) | _numbered(producer_id, producer_epoch, producer_seq)
        return _publish(stream, project, content_of(data, content_type), headers)

    @operation
    def publish_many(
        self,
        stream: str,
        messages: Sequence[Any],
        *,
        seq: str | None = None,
        producer_id: str | None = None,
        producer_epoch: int = 0,
        producer_seq: int | None = None,
        project: str | None = None,
    ) -> Call[FannedOut]:
        """Several messages of a JSON stream, all or none."""
        headers = given(**{"Stream-Seq": seq}) | _numbered(producer_id, producer_epoch, producer_seq)
        return _publish(stream, project, content_of_messages(messages), headers)

    @operation
    def get(self, session: str, *, project: str | None = None) -> Call[Session]:
        """What it subscribes to, and until when it lives. Raises SessionNotFound."""
        return Call(method="GET", path=_session(session, project), response=Session)

    @operation
    def touch(self, session: str, *, project: str | None = None) -> Call[Touched]:
        """Let it live on, for as long as a new one would. Reading it does not do that. Raises SessionNotFound."""
        return Call(method="POST", path=f"{_session(session, project)}/touch", response=Touched)

    @operation
    def delete(self, session: str, *, project: str | None = None) -> Call[None]:
        """With its stream and all its subscriptions. Raises SessionNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=_session(session, project))

    @operation
    def fanout(self, stream: str, *, project: str | None = None) -> Call[Fanout]:
        """How many subscribe to the stream, and how far its copies have come. Raises StreamNotFound."""
        return Call(method="GET", path=f"{_root(project)}/fanout/{stream_id_in_url(stream)}", response=Fanout)

    @live
    def follow(
        self,
        session: str,
        offset: str | None = None,
        *,
        skip: int = 0,
        live: Live | None = None,
        project: str | None = None,
    ) -> Follower:
        """What the session has got after the offset, and then what comes: `streams.follow` of its stream.

        It ends with StreamNotFound when the session has expired or is deleted: `touch` it now and then.
        """
        return follower(f"session:{session}", offset, skip, live, project)


def _root(project: str | None) -> str:
    return f"/v1/{OWN_TENANT if project is None else segment(project)}"


def _session(session: str, project: str | None) -> str:
    if session in ("", ".", "..") or "/" in session:
        raise ValueError(f"not a session's id: {session!r}")
    return f"{_root(project)}/session/{segment(session)}"


def _numbered(producer_id: str | None, epoch: int, seq: int | None) -> dict[str, str]:
    if (producer_id is None) != (seq is None):
        raise ValueError("a producer's publish takes both, producer_id and producer_seq")
    return {} if producer_id is None else {"Producer-Id": producer_id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def _publish(stream: str, project: str | None, content: Content, headers: Mapping[str, str]) -> Call[FannedOut]:
    path = f"{_root(project)}/publish/{stream_id_in_url(stream)}"
    return Call(method="POST", path=path, body=content, headers=headers, read=_fanned_out, is_repeatable="Producer-Id" in headers)


def _fanned_out(response: httpx.Response) -> FannedOut:
    stored = appended(response)
    return FannedOut(
        offset=stored.offset,
        is_closed=stored.is_closed,
        is_duplicate=stored.is_duplicate,
        mode=response.headers.get("stream-fanout-mode", ""),
        count=_number(response, "stream-fanout-count"),
        successes=_number(response, "stream-fanout-successes"),
        failures=_number(response, "stream-fanout-failures"),
    )


def _number(response: httpx.Response, header: str) -> int:
    text = response.headers.get(header, "")
    return int(text) if text.isdigit() else 0


class Sessions(SessionCalls, SyncNamespace):
    pass


class AsyncSessions(SessionCalls, AsyncNamespace):
    pass
