"""An AsyncAPI 3 document from what a tenant has. Pure.

It is written for clients: `send` is what a client publishes or appends, `receive` what it gets.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from postroad.asyncapi.local_references import NotMovable, moved
from postroad.kernel.event import Event, event_name
from postroad.kernel.media_types import JSON, is_json

VERSION = "3.0.0"
SCHEMAS_BYTES_MAX = 4 * 1024 * 1024  # of all schemas of queues and topics together
_SCHEMA_FORMAT = "application/schema+json;version=draft-07"
_PLAIN = re.compile(r"[^A-Za-z0-9.-]")
_DESCRIPTION = (
    "Queues, topics, durable streams and events of one tenant, as its clients see them: `send` is what a client sends, `receive` "
    "what it gets. The payload of a message is the field `payload` of a request (docs: queues, topics), or the data of a "
    "CloudEvents 1.0 event, which publishing accepts in its place. The HTTP API as a whole is described by /openapi.json."
)
_TRACE = {"type": "string", "description": "W3C trace context of the publisher."}
_HEADERS = {"type": "object", "additionalProperties": {"type": "string"}, "properties": {"traceparent": _TRACE}}


@dataclass(frozen=True, slots=True)
class Source:
    """A queue or topic: its name, JSON Schema, and the tags of its settings."""

    name: str
    schema: dict[str, Any] | None = None
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamSource:
    id: str
    content_type: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is listed. `left_out` has the kinds of which there are more."""

    tenant: str
    queues: Sequence[Source]
    topics: Sequence[Source]
    streams: Sequence[StreamSource]
    left_out: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TelemetryPart:
    """Messages and schemas of the event types: the same for all tenants."""

    messages: dict[str, Any]
    schemas: dict[str, Any]


def document(inventory: Inventory, telemetry: TelemetryPart, version: str, url: str, limit: int) -> dict[str, Any]:
    """The document. Lists are in the order of the inventory, which is that of names."""
    builder = _Builder(dict(telemetry.schemas))
    for one in inventory.queues:
        builder.add_queue(one)
    for one in inventory.topics:
        builder.add_topic(one)
    for stream in inventory.streams:
        builder.add_stream(stream)
    builder.add_telemetry(telemetry.messages)
    info: dict[str, Any] = {"title": f"Postroad: {inventory.tenant}", "version": version, "description": _DESCRIPTION}
    if inventory.left_out:
        info["description"] += f" Cut: only the first {limit} of the {', '.join(inventory.left_out)} are listed."
        info["x-postroad-left-out"] = list(inventory.left_out)
    return {
        "asyncapi": VERSION,
        "info": info,
        "defaultContentType": JSON,
        "servers": {"postroad": _server(url)},
        "channels": builder.channels,
        "operations": builder.operations,
        "components": {
            "schemas": builder.schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def telemetry_part(types: Iterable[type[Event]]) -> TelemetryPart:
    """Of the event types that readers see, in the order of their names."""
    shown = sorted((kind for kind in types if not kind.is_attached), key=event_name)
    references, schemas = msgspec.json.schema_components(shown, ref_template="#/components/schemas/{name}")
    messages = {
        event_name(kind): {
            "name": event_name(kind),
            "title": (kind.__doc__ or event_name(kind)).strip().partition("\n")[0],
            "contentType": JSON,
            "payload": reference,
        }
        for kind, reference in zip(shown, references, strict=True)
    }
    return TelemetryPart(messages, schemas)


def key_of(text: str) -> str:
    """The text as a key of the document, which references need no escapes for. Different texts have different keys."""
    return _PLAIN.sub(lambda found: f"_{found[0].encode().hex()}", text)


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    server: dict[str, Any] = {"host": parts.netloc, "protocol": parts.scheme}
    if parts.path.strip("/"):
        server["pathname"] = parts.path.rstrip("/")
    return {**server, "security": [{"$ref": "#/components/securitySchemes/bearer"}]}


class _Builder:
    def __init__(self, schemas: dict[str, Any]) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.schemas = schemas
        self._bytes_left = SCHEMAS_BYTES_MAX

    def add_queue(self, source: Source) -> None:
        key, path = f"queues.{key_of(source.name)}", f"/v1/queues/{quote(source.name, safe='')}"
        self.channels[key] = {
            "address": f"{path}/messages",
            "title": f"Queue {source.name}",
            "description": f"Consumers lease messages with `POST {path}/pull` and acknowledge them.",
            "messages": {"message": self._message(key, source)},
            **_tags(source),
        }
        self._operate(key, "publish", "send", "POST", f"Publish to the queue {source.name}")
        self._operate(key, "pull", "receive", "POST", f"Lease messages of the queue {source.name}")

    def add_topic(self, source: Source) -> None:
        key, path = f"topics.{key_of(source.name)}", f"/v1/topics/{quote(source.name, safe='')}"
        self.channels[key] = {
            "address": f"{path}/messages",
            "title": f"Topic {source.name}",
            "description": f"Every message has a subject. Readers follow it with `GET {path}/stream` or have it delivered.",
            "messages": {"message": self._message(key, source)},
            **_tags(source),
        }
        self._operate(key, "publish", "send", "POST", f"Publish to the topic {source.name}")
        self._operate(key, "read", "receive", "GET", f"Read messages of the topic {source.name}")

    def add_stream(self, stream: StreamSource) -> None:
        key = f"streams.{key_of(stream.id)}"
        content: dict[str, Any] = {} if is_json(stream.content_type) else {"type": "string", "format": "binary"}
        self.channels[key] = {
            "address": f"/v1/stream/{quote(stream.id, safe='/')}",
            "title": f"Stream {stream.id}",
            "messages": {"message": {"name": stream.id, "contentType": stream.content_type, "payload": content}},
        }
        self._operate(key, "append", "send", "POST", f"Append to the stream {stream.id}")
        self._operate(key, "read", "receive", "GET", f"Read the stream {stream.id}")

    def add_telemetry(self, messages: dict[str, Any]) -> None:
        self.channels["telemetry"] = {
            "address": "/v1/telemetry/stream",
            "title": "Events of the tenant",
            "description": "Server-sent events. With `?format=cloudevents` each is the data of a CloudEvents 1.0 event.",
            "messages": messages,
        }
        self._operate("telemetry", "follow", "receive", "GET", "Follow the events of the tenant")

    def _operate(self, channel: str, verb: str, action: str, method: str, summary: str) -> None:
        self.operations[f"{verb}.{channel}"] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
            "bindings": {"http": {"method": method, "bindingVersion": "0.3.0"}},
        }

    def _message(self, key: str, source: Source) -> dict[str, Any]:
        message: dict[str, Any] = {"name": source.name, "headers": _HEADERS, "payload": {}}
        if source.schema is None:
            return message
        size = len(msgspec.json.encode(source.schema))
        if size > self._bytes_left:
            return {**message, "description": "Payloads match a JSON Schema, which is left out: the document would be too large."}
        try:
            schema = moved(source.schema, f"#/components/schemas/{key}/schema")
        except NotMovable as reason:
            description = f"Payloads match a JSON Schema that cannot be part of this document: {reason}. It is a setting."
            return {**message, "description": description}
        self._bytes_left -= size
        self.schemas[key] = {"schemaFormat": _SCHEMA_FORMAT, "schema": schema}
        return {**message, "contentType": JSON, "payload": {"$ref": f"#/components/schemas/{key}"}}


def _tags(source: Source) -> dict[str, Any]:
    return {"tags": [{"name": f"{name}={value}"} for name, value in sorted(source.tags.items())]} if source.tags else {}
