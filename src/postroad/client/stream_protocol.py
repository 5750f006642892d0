"""What goes into a stream, and what comes back of it: paths, bodies and headers of the Durable Streams protocol."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from postroad.api.streams import Appended
from postroad.client.calls import Call, Content
from postroad.client.encoding import segment

JSON = "application/json"
BYTES = "application/octet-stream"


def streams_root(project: str | None) -> str:
    return "/v1/stream" if project is None else f"/v1/{segment(project)}/stream"


def stream_path(stream: str, project: str | None) -> str:
    """Raises ValueError as `stream_id_in_url`."""
    return f"{streams_root(project)}/{stream_id_in_url(stream)}"


def stream_id_in_url(stream: str) -> str:
    """Raises ValueError for an id that would name something else once it is in a URL."""
    if any(part in ("", ".", "..") for part in stream.split("/")):
        raise ValueError(f"a stream's id has no empty segment, and none that is '.' or '..': {stream!r}")
    return quote(stream, safe="/:@+~=")


def content_of(data: Any, content_type: str | None) -> Content:
    """Bytes as they are; anything else as one message of a JSON stream, also if it is a list."""
    if isinstance(data, bytes | bytearray | memoryview):
        return Content(bytes(data), content_type or BYTES)
    return content_of_messages([data], content_type)


def content_of_messages(messages: Sequence[Any], content_type: str | None = None) -> Content:
    """An array, of which the protocol makes one message for each element."""
    return Content(msgspec.json.encode(list(messages)), content_type or JSON)


def append_call(
    path: str, content: Content | None, headers: Mapping[str, str], *, closes: bool = False, is_repeatable: bool
) -> Call[Appended]:
    return Call(
        method="POST",
        path=path,
        body=content,
        headers={**headers, **({"Stream-Closed": "true"} if closes else {})},
        read=_closed if content is None else appended,
        is_repeatable=is_repeatable,
    )


def appended(response: httpx.Response) -> Appended:
    # A producer's append is 200 when it is new; only the answer to one has Producer-Seq.
    is_duplicate = response.status_code == 204 and "producer-seq" in response.headers
    offset = response.headers.get("stream-next-offset")
    return Appended(offset=offset, is_closed=is_marked(response, "stream-closed"), is_duplicate=is_duplicate)


def _closed(response: httpx.Response) -> Appended:
    return Appended(offset=response.headers.get("stream-next-offset"), is_closed=is_marked(response, "stream-closed"))


def is_marked(response: httpx.Response, header: str) -> bool:
    return bool(response.headers.get(header, "").lower() == "true")
