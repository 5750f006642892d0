"""Problem responses (RFC 9457)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.kernel.clock import Timestamp


class FieldError(msgspec.Struct, frozen=True):
    """One invalid field of a body."""

    path: str
    detail: str


class Problem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Why a request failed (RFC 9457)."""

    type: Annotated[str, Meta(description="`/docs/errors#<code>`: the meaning of the error.")]
    title: str
    status: int
    detail: str = msgspec.field(default_factory=str)  # always sent; missing in earlier versions
    code: str
    retryable: Annotated[bool, Meta(description="True if the same request may succeed later.")]
    request_id: Annotated[
        str | None, Meta(description="Of the response, as in its `X-Request-Id`; not in the results of a batch.")
    ] = None
    reason: Annotated[str | None, Meta(description="Of a refused command: a short code, such as `hmac-invalid`.")] = None
    errors: list[FieldError] | None = None
    retry_after_ms: Annotated[
        int | None, Meta(description="Of a refused command: the time after which it may be sent again.")
    ] = msgspec.field(name="retry_after_ms", default=None)
    throttle_until: Annotated[Timestamp | None, Meta(description="Of a refused command: the same as a time.")] = msgspec.field(
        name="throttle_until", default=None
    )
    source_share: Annotated[float | None, Meta(description="Share of the sender in the route's commands.")] = msgspec.field(
        name="source_share", default=None
    )
    competing_share: Annotated[float | None, Meta(description="Share of all other senders.")] = msgspec.field(
        name="competing_share", default=None
    )
    dispatch_volume: Annotated[int | None, Meta(description="Commands of the route in the window.")] = msgspec.field(
        name="dispatch_volume", default=None
    )


HINTS = ("retry_after_ms", "throttle_until", "source_share", "competing_share", "dispatch_volume")
