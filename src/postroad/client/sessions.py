"""`client.sessions`: messages published to a stream are copied to the stream of each subscribed session.

`project` is the tenant of the session; default: the client's `tenant` (POSTROAD_TENANT) or else that of the key, which the
first call reads from the server (`/v1/whoami`).
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from postroad.api.sessions import FannedOut, Subscribed, SubscribeRequest
from postroad.client.calls import AsyncNamespace, Call, Content, SyncNamespace, live, operation
from postroad.client.encoding import given, segments, tenant_segment
from postroad.client.follower import Follower, Live
from postroad.client.generated.sessions import SessionsCalls
from postroad.client.stream_protocol import content_of, content_of_messages, read_appended
from postroad.client.streams import follower


class SessionCalls(SessionsCalls):
    @operation
    def subscribe(
        self, stream: str, session: str | None = None, *, envelope: bool = False, project: str | None = None
    ) -> Call[Subscribed]:
        """Subscribe a session to a stream, or to all streams that match a pattern such as `chat:*`.

        Creates the session if it does not exist, with a random id by default; prolongs it otherwise. With `envelope` each message
        names its source: `{"stream", "offset", "messages"}`. Raises StreamNotFound, ContentTypeMismatch.
        """
        body = SubscribeRequest(session_id=session or str(uuid.uuid4()), stream_id=stream, envelope=envelope)
        return Call(method="POST", path=f"/v1/{tenant_segment(project)}/subscribe", body=body, response=Subscribed)

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
        """Like `streams.append`, and copy to every subscribed session: once, in order, at once or soon.

        With `producer_id` and `producer_seq` (0, 1, 2 …) the request is repeated if the response is lost, and stored once;
        without them it is not repeated. Raises the errors of `streams.append`, ProducerGap and ProducerFenced; a failed copy is
        no error.
        """
        headers = given(**{"Stream-Seq": seq}) | _producer_headers(producer_id, producer_epoch, producer_seq)
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
        """Publish several messages of a JSON stream, all or none."""
        headers = given(**{"Stream-Seq": seq}) | _producer_headers(producer_id, producer_epoch, producer_seq)
        return _publish(stream, project, content_of_messages(messages), headers)

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
        """Follow the session's stream, like `streams.follow`.

        Raises StreamNotFound when the session has expired or was deleted: `touch` it regularly.
        """
        return follower(f"session:{session}", offset, skip, live, project)


def _producer_headers(producer_id: str | None, epoch: int, seq: int | None) -> dict[str, str]:
    if (producer_id is None) != (seq is None):
        raise ValueError("pass producer_id and producer_seq together")
    return {} if producer_id is None else {"Producer-Id": producer_id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def _publish(stream: str, project: str | None, content: Content, headers: Mapping[str, str]) -> Call[FannedOut]:
    path = f"/v1/{tenant_segment(project)}/publish/{segments(stream)}"
    return Call(
        method="POST", path=path, body=content, headers=headers, read=_read_fanned_out, is_repeatable="Producer-Id" in headers
    )


def _read_fanned_out(response: httpx.Response) -> FannedOut:
    stored = read_appended(response)
    return FannedOut(
        offset=stored.offset,
        is_closed=stored.is_closed,
        is_duplicate=stored.is_duplicate,
        mode=response.headers.get("stream-fanout-mode", ""),
        count=_integer(response, "stream-fanout-count"),
        successes=_integer(response, "stream-fanout-successes"),
        failures=_integer(response, "stream-fanout-failures"),
    )


def _integer(response: httpx.Response, header: str) -> int:
    text = response.headers.get(header, "")
    return int(text) if text.isdecimal() else 0


class Sessions(SessionCalls, SyncNamespace):
    pass


class AsyncSessions(SessionCalls, AsyncNamespace):
    pass
