"""CloudEvents in requests and responses: which requests have events, their bodies, and which form a client accepts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from postroad.http.request import Request
from postroad.kernel import json
from postroad.kernel.cloudevents import BATCH, EVENT, PREFIX, CloudEvent, Json, from_headers, from_json
from postroad.kernel.errors import MalformedJson, UnsupportedMediaType
from postroad.kernel.json import invalid_field
from postroad.kernel.json_keys import JsonShape, duplicate_key
from postroad.kernel.media_types import is_json

_OBJECT: "msgspec.json.Decoder[Json]" = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: "msgspec.json.Decoder[list[Json]]" = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_OBJECT_SHAPE = JsonShape(is_object=True)
_MEDIA = "application/cloudevents"
_PREFIX = PREFIX.encode()
_ANY: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class EventBody:
    """A route accepts events in place of its body. `convert` makes the body of them: of one, or with `is_batch` of a list."""

    convert: Callable[[Any], Any]
    is_batch: bool = False

    @property
    def media(self) -> str:
        return BATCH if self.is_batch else EVENT


def has_events(request: Request) -> bool:
    """True for a request in one of the modes of the HTTP binding. An ordinary request costs three lookups of headers."""
    headers = request.headers
    if b"ce-specversion" in headers or b"ce-id" in headers:
        return True
    media = headers.get(b"content-type")
    return media is not None and media != b"application/json" and media[:23].lower() == b"application/cloudevents"


def check_media(request: Request, body: EventBody) -> None:
    """Raises UnsupportedMediaType."""
    media = _media(request)
    if not media.startswith(_MEDIA):  # binary mode
        if body.is_batch:
            raise UnsupportedMediaType(f"a batch of events has the content type {BATCH}")
        return
    if media != body.media:
        other = "the path of one message" if body.is_batch else "the path of a batch"
        hint = f"; send it to {other}" if media in (EVENT, BATCH) else ""
        raise UnsupportedMediaType(f"send {body.media}, not {media[:100]}{hint}")


def decode_events(request: Request, body: EventBody, content: bytes) -> Any:
    """The body of the route. Raises UnsupportedMediaType, MalformedJson, BodyInvalid with the path of an attribute."""
    check_media(request, body)
    if body.is_batch:
        found = json.decode(_ARRAY, content)
        _check_unique_keys(content, JsonShape(items=_OBJECT_SHAPE))
        return body.convert([from_json(one, f"$[{index}]") for index, one in enumerate(found)])
    if _media(request) == EVENT:
        event = from_json(json.decode(_OBJECT, content))
        _check_unique_keys(content, _OBJECT_SHAPE)
        return body.convert(event)
    return body.convert(_binary_event(request, content))


def _binary_event(request: Request, content: bytes) -> CloudEvent:
    headers = []
    for name, value in request.headers.items():
        if name.startswith(_PREFIX):
            try:
                headers.append((name.decode("ascii"), value.decode()))
            except UnicodeDecodeError as exc:
                raise invalid_field(name.decode("latin-1")[:100], "is not percent-encoded UTF-8") from exc
    media = request.header(b"content-type")
    event = from_headers(headers, media, content or None)
    if content and is_json(event.content_type):
        try:
            json.decode(_ANY, content)
        except MalformedJson as exc:
            if media is None:
                raise invalid_field("Content-Type", "is required for data that is not JSON") from exc
            raise
    return event


def _check_unique_keys(content: bytes, shape: JsonShape) -> None:
    key = duplicate_key(content, shape)
    if key is not None:
        raise MalformedJson(f"the key {key[:100]!r} is given twice in one object")


def _media(request: Request) -> str:
    return (request.header(b"content-type") or "").partition(";")[0].strip().lower()


def accepted_events(request: Request) -> Literal["event", "batch"] | None:
    """The form of events that the client prefers to other responses; None if it prefers others."""
    accept = request.headers.get(b"accept")
    if accept is None or b"cloudevents" not in accept:
        return None
    ranges = []
    for one in accept.decode("latin-1").lower().split(","):
        media, *parameters = (part.strip() for part in one.split(";"))
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        ranges.append((_number(quality), media))
    for weight, media in sorted(ranges, key=lambda found: -found[0]):
        if weight > 0 and media in (EVENT, BATCH):
            return "event" if media == EVENT else "batch"
        if weight > 0 and media in ("application/json", "*/*", "application/*"):
            return None
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
