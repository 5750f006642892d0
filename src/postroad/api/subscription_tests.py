"""Tests of subscriptions: a message to the endpoint, and a filter on a message. Nothing is stored."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postroad.api.subscriptions import ContentFilterDefinition, Pattern, Patterns


class DeliveryTest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A message for a test; it is not stored."""

    subject: Annotated[str, Meta(min_length=1, max_length=256, description="Subject of the message.")] = "test"
    payload: Annotated[Any, Meta(description="Any JSON.")] = msgspec.field(default_factory=lambda: {"test": True})
    headers: Annotated[dict[str, str], Meta(max_length=32, description="Headers of the message.")] = {}


class DeliveryTestResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The complete attempt. Values of custom headers are hidden."""

    outcome: Literal["delivered", "transient", "refused", "gone"]
    duration_ms: int
    request_headers: dict[str, str]
    request_body: str
    status: int | None = None
    error: str | None = None
    response_headers: dict[str, str] = {}
    response_body: str | None = None


class FilterTest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A subscription's selection, and a message to try it on."""

    subject: Annotated[str, Meta(min_length=1, max_length=256, description="Subject of the message.")]
    filter: Patterns | Pattern = (">",)
    content_filter: ContentFilterDefinition | None = None
    payload: Annotated[Any, Meta(description="Payload of the message: any JSON.")] = None
    headers: Annotated[dict[str, str], Meta(max_length=32, description="Headers of the message.")] = {}


class FilterTestResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    matches: bool
    subject_matches: bool
    content_matches: bool
