"""Paths, bodies and headers of the Durable Streams protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec

from postroad.api.streams import Appended
from postroad.client.calls import Call, Content
from postroad.client.encoding import segments, tenant_prefix

JSON = "application/json"
BYTES = "application/octet-stream"


def stream_path(stream: str, project: str | None) -> str:
    """Raises ValueError like `segments`."""
    return f"/v1{tenant_prefix(project)}/stream/{segments(stream)}"


def content_of(data: Any, content_type: str | None) -> Content:
    """Bytes unchanged; any other value, also a list, as one message of a JSON stream."""
    if isinstance(data, bytes | bytearray | memoryview):
        return Content(bytes(data), content_type or BYTES)
    return content_of_messages([data], content_type)


def content_of_messages(messages: Sequence[Any], content_type: str | None = None) -> Content:
    """A JSON array; the server stores one message for each element."""
    return Content(msgspec.json.encode(list(messages)), content_type or JSON)


def append_call(
    path: str, content: Content | None, headers: Mapping[str, str], *, closes: bool = False, is_repeatable: bool
) -> Call[Appended]:
    return Call(
        method="POST",
        path=path,
        body=content,
        headers={**headers, **({"Stream-Closed": "true"} if closes else {})},
        read=_closed if content is None else read_appended,
        is_repeatable=is_repeatable,
    )


def read_appended(response: httpx.Response) -> Appended:
    # Only responses to producers have Producer-Seq, and a new append of a producer is 200.
    is_duplicate = response.status_code == 204 and "producer-seq" in response.headers
    offset = response.headers.get("stream-next-offset")
    return Appended(offset=offset, is_closed=is_true(response, "stream-closed"), is_duplicate=is_duplicate)


def _closed(response: httpx.Response) -> Appended:
    return Appended(offset=response.headers.get("stream-next-offset"), is_closed=is_true(response, "stream-closed"))


def is_true(response: httpx.Response, header: str) -> bool:
    return bool(response.headers.get(header, "").lower() == "true")
