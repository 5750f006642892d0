"""Errors of responses: the class of each code, and one of its family for a code that this version does not know."""

import functools
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec

from postroad.api.problems import HINTS
from postroad.client.calls import Call
from postroad.kernel.errors import (
    ERRORS,
    AuthError,
    ConflictError,
    InvalidRequest,
    NotFound,
    PostroadError,
    Unavailable,
    Unreachable,
)

_STATUS_CODES = {401: "unauthenticated", 403: "forbidden", 429: "rate-limited"}
_ERROR_HEADERS = {
    "producer-epoch": "epoch",
    "producer-expected-seq": "expected",
    "producer-received-seq": "received",
    "stream-next-offset": "offset",
    "stream-start-offset": "start",
}


def problem_of(call: Call[Any], response: httpx.Response) -> PostroadError | None:
    """The error of a response, as its class; None if it is a success."""
    if response.status_code < 400:
        return None
    import postroad.client.errors  # noqa: F401  # registers the class of every code; namespaces are imported with their first use

    try:
        body = msgspec.json.decode(response.content)
        kind = ERRORS.get(body["code"]) or _unknown_kind(
            body["code"], response.status_code, body.get("title", ""), body.get("retryable")
        )
        detail, extra = body.get("detail", ""), {"errors": body.get("errors"), "reason": body.get("reason")}
        extra |= {name: body[name] for name in HINTS if name in body}
    except (msgspec.DecodeError, KeyError, TypeError):  # a response to HEAD, which has no body, or of a proxy
        code = (_STATUS_CODES | dict(call.codes)).get(response.status_code, "") if call.method == "HEAD" else ""
        kind = ERRORS.get(code, Unreachable if response.status_code >= 500 else PostroadError)
        detail, extra = unquote(call.path) if code else f"HTTP {response.status_code}", {}
    details = {name: response.headers[header] for header, name in _ERROR_HEADERS.items() if header in response.headers}
    extra |= {name: int(value) if value.isdecimal() else value for name, value in details.items()}
    after = response.headers.get("retry-after", "")
    exact_ms = extra.get("retry_after_ms")  # the header has whole seconds
    wait = exact_ms / 1000 if isinstance(exact_ms, int) else float(after) if after.isdecimal() else None
    problem = kind(detail, retry_after=wait, extra=extra)
    problem.request_id = response.headers.get("x-request-id", "")
    return problem


_FAMILIES: dict[int, type[PostroadError]] = {
    **dict.fromkeys((400, 413, 415, 422), InvalidRequest),
    **dict.fromkeys((401, 403), AuthError),
    **dict.fromkeys((404, 410), NotFound),
    409: ConflictError,
    **dict.fromkeys((502, 503, 504, 507), Unavailable),
}


@functools.lru_cache(maxsize=100)
def _unknown_kind(code: str, status: int, title: str, is_retryable: bool | None) -> type[PostroadError]:
    """The class of an error code that this version does not know: a subclass of the family of its status."""
    family = _FAMILIES.get(status)
    if family is None:
        return PostroadError
    attributes = {"code": code, "status": status, "title": title or code, "retryable": bool(is_retryable)}
    return type(family.__name__, (family,), attributes)
