"""Errors as `application/problem+json` (RFC 9457)."""

import math

import msgspec

from postroad.api.problems import HINTS, FieldError, Problem
from postroad.http.response import Response
from postroad.kernel.errors import MethodNotAllowed, PostroadError, Unauthenticated

PROBLEM_MEDIA = b"application/problem+json"


def problem_of(error: PostroadError, request_id: str | None = None) -> Problem:
    errors, reason = error.extra.get("errors"), error.extra.get("reason")
    return Problem(
        type=f"/docs/errors#{error.code}",
        title=error.title,
        status=error.status,
        detail=error.detail or error.__doc__ or error.title,
        code=error.code,
        retryable=error.retryable,
        request_id=request_id,
        reason=reason if isinstance(reason, str) else None,
        errors=msgspec.convert(errors, list[FieldError]) if errors else None,
        **{name: error.extra[name] for name in HINTS if name in error.extra},  # type: ignore[arg-type]
    )


def problem_response(error: PostroadError, request_id: str | None = None) -> Response:
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
