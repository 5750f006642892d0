"""Errors as `application/problem+json` (RFC 9457)."""

import math
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.http.messages import Response
from postroad.kernel.errors import MethodNotAllowed, PostroadError, Unauthenticated

PROBLEM_MEDIA = b"application/problem+json"


class FieldError(msgspec.Struct, frozen=True):
    path: str
    detail: str


class Problem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Why a request was not carried out."""

    type: Annotated[str, Meta(description="`/docs/errors#<code>`: what this error means.")]
    title: str
    status: int
    detail: str | UnsetType = UNSET
    code: str
    retryable: Annotated[bool, Meta(description="Whether the same request may succeed later.")]
    request_id: str | UnsetType = UNSET
    errors: list[FieldError] | UnsetType = UNSET


def problem_of(error: PostroadError, request_id: str | UnsetType = UNSET) -> Problem:
    errors = error.extra.get("errors")
    return Problem(
        type=f"/docs/errors#{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail or UNSET,
        code=error.code,
        retryable=error.retryable,
        request_id=request_id,
        errors=msgspec.convert(errors, list[FieldError]) if errors else UNSET,
    )


def problem_response(error: PostroadError, request_id: str) -> Response:
    response = Response(problem_of(error, request_id), error.status, PROBLEM_MEDIA)
    for name, value in error.headers:
        response.headers.append((name.encode(), value.encode("latin-1")))
    if error.retry_after is not None:
        response.headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    if isinstance(error, Unauthenticated):
        response.headers.append((b"www-authenticate", b'Bearer realm="postroad"'))
    if isinstance(error, MethodNotAllowed):
        response.headers.append((b"allow", ", ".join(error.extra["allow"]).encode()))  # type: ignore[arg-type]
    return response
