"""Problem responses (RFC 9457)."""

from typing import Annotated

import msgspec
from msgspec import Meta


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
