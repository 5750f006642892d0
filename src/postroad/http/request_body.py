"""Bodies of requests, decoded to the types that routes declare."""

from postroad.http.cloudevents import check_media, decode_events, has_events
from postroad.http.request import ClientDisconnected, Request
from postroad.http.routing import Route
from postroad.kernel import json
from postroad.kernel.errors import MalformedJson, TooLarge, UnsupportedMediaType
from postroad.kernel.json_keys import JsonShape, duplicate_key


async def read_body(request: Request, limit: int) -> bytes:
    """The body, which nearly always is one chunk. The server enforces the time limit. Raises UnsupportedMediaType, TooLarge,
    Overloaded, RateLimited."""
    coding = request.headers.get(b"content-encoding")
    if coding is not None and coding.strip().lower() != b"identity":
        raise UnsupportedMediaType(f"send the body without Content-Encoding, not {coding[:100].decode('latin-1')}")
    length = request.headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise TooLarge(f"the body has {int(length)} bytes; {limit} is the limit")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"the body exceeds {limit} bytes")
        if request.slot is not None:
            request.slot.add_body(len(chunk))
        if not message.get("more_body"):
            return b"".join([*chunks, chunk]) if chunks else chunk
        chunks.append(chunk)


def decode_body(request: Request, route: Route, body: bytes) -> None:
    """Raises UnsupportedMediaType, MalformedJson, BodyInvalid."""
    request.body_bytes = len(body)
    if route.body is None or route.raw_body:
        request.body = body
        return
    if route.empty_body is not None and not body:
        request.body = route.empty_body
        return
    if route.events is not None and has_events(request):
        request.body = decode_events(request, route.events, body)
        return
    check_json(request)  # clients add a content type of their own to an empty body
    request.body = json.decode(route.body_decoder, body)
    if route.body_shape is not None:
        _check_unique_keys(body, route.body_shape)


def _check_unique_keys(body: bytes, shape: JsonShape) -> None:
    """Raises MalformedJson. The body was decoded, so it is valid JSON of this shape."""
    key = duplicate_key(body, shape)
    if key is not None:
        raise MalformedJson(f"the key {key[:100]!r} is given twice in one object")


def check_body_media(request: Request, route: Route) -> None:
    """Before the body of a route with a type is read. Raises UnsupportedMediaType."""
    if route.events is not None and has_events(request):
        check_media(request, route.events)
    else:
        check_json(request)


def check_json(request: Request) -> None:
    """Raises UnsupportedMediaType."""
    media = request.headers.get(b"content-type")
    if media is not None and not _is_json(media):
        raise UnsupportedMediaType(f"send application/json, not {media[:100].decode('latin-1')}")


def _is_json(media: bytes) -> bool:
    kind = media.partition(b";")[0].strip().lower()
    return kind == b"application/json" or kind.endswith(b"+json")
