"""Expected failures: code, HTTP status, whether a retry can succeed.

A class declares one row of the error table. Problem responses, SDK exceptions and the error reference are generated from it.
Errors of one capability are defined next to its API structs in `postroad.api` and declared by the capability. `ERRORS` has every
class that is imported, by code.

    PostroadError
    ├── InvalidRequest      the request cannot be used                  400, 413, 415, 422 …
    ├── AuthError           the caller is unknown or not allowed        401, 403, 429
    ├── NotFound            the named resource does not exist           404, 405, 410
    ├── ConflictError       the current state forbids the operation     409
    └── Unavailable         not possible now, or storage is full        5xx, 429
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

ERRORS: dict[str, type["PostroadError"]] = {}


class PostroadError(Exception):
    """Internal error. The request id identifies it in the logs."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    title: ClassVar[str] = "Internal error"

    def __init_subclass__(cls, *, code: str | None = None, status: int = 0, retryable: bool = False, title: str = "") -> None:
        if code is None:
            return
        if code in ERRORS:
            raise TypeError(f"two errors share the code {code!r}")
        cls.code, cls.status, cls.retryable, cls.title = code, status, retryable, title
        ERRORS[code] = cls

    def __init__(
        self,
        detail: str = "",
        *,
        retry_after: float | None = None,
        extra: Mapping[str, object] | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`headers` are added to the response: some protocols require them."""
        super().__init__(detail or self.title)
        self.headers = headers
        self.detail = detail
        self.request_id = ""  # set by the SDK
        self.retry_after = retry_after
        self.extra = extra or {}


ERRORS[PostroadError.code] = PostroadError


# The request cannot be used.


class InvalidRequest(PostroadError):
    pass


class MalformedJson(InvalidRequest, code="malformed-json", status=400, title="Malformed JSON"):
    """The body is not JSON in UTF-8."""


class InvalidParameter(InvalidRequest, code="invalid-parameter", status=400, title="Invalid parameter"):
    """A path segment, query parameter or header has an invalid value."""


class BodyInvalid(InvalidRequest, code="invalid-body", status=422, title="Invalid body"):
    """A field of the body is missing, unknown, of the wrong type or out of range; `errors` names the field."""


class TooLarge(InvalidRequest, code="too-large", status=413, title="Too large"):
    """The body, or one message in it, exceeds the limit that `detail` names."""


class MalformedRequest(InvalidRequest, code="malformed-request", status=400, title="Malformed request"):
    """The bytes received are not a valid HTTP/1.1 request. The connection was closed."""


class HeaderTimeout(InvalidRequest, code="request-timeout", status=408, retryable=True, title="Request timeout"):
    """The request headers did not arrive in time. The connection was closed."""


class BodyTooSlow(InvalidRequest, code="body-timeout", status=408, retryable=True, title="Request timeout"):
    """The request body did not arrive in time. The request had no effect."""


class HeadersTooLarge(InvalidRequest, code="headers-too-large", status=431, title="Headers too large"):
    """The request line and headers exceed the limit."""


class MisdirectedRequest(InvalidRequest, code="misdirected-request", status=421, title="Misdirected request"):
    """An open installation (`--open`) serves loopback host names only."""


class UpgradeRequired(InvalidRequest, code="upgrade-required", status=426, title="Upgrade required"):
    """The path is a WebSocket; `Sec-WebSocket-Version` names the supported version."""


class UnsupportedMediaType(InvalidRequest, code="unsupported-media-type", status=415, title="Unsupported media type"):
    """The route does not accept this content type."""


# The caller is unknown or not allowed.


class AuthError(PostroadError):
    pass


class Unauthenticated(AuthError, code="unauthenticated", status=401, title="Not authenticated"):
    """The credential is missing, unknown, disabled or expired."""


class Forbidden(AuthError, code="forbidden", status=403, title="Forbidden"):
    """The credential is valid but does not allow this operation; `detail` names the missing scope."""


class RateLimited(AuthError, code="rate-limited", status=429, retryable=True, title="Rate limited"):
    """The address, key or tenant has reached a limit on its requests, see `detail`; `Retry-After` has the time to wait."""


# The named resource does not exist.


class NotFound(PostroadError):
    pass


class RouteNotFound(NotFound, code="route-not-found", status=404, title="Path not found"):
    """No route has this path."""


class MethodNotAllowed(NotFound, code="method-not-allowed", status=405, title="Method not allowed"):
    """The path exists but does not support this method; `Allow` lists the supported ones."""


# The current state forbids the operation.


class ConflictError(PostroadError):
    pass


class Conflict(ConflictError, code="conflict", status=409, retryable=True, title="Conflict"):
    """The resource was changed by another request since it was read."""


class AlreadyExists(ConflictError, code="already-exists", status=409, title="Already exists"):
    """A resource with this name exists; `detail` names it."""


class PreconditionFailed(ConflictError, code="precondition-failed", status=409, title="Precondition failed"):
    """The operation would violate a precondition; `detail` names it."""


# Not possible now, or storage is full.


class Unavailable(PostroadError):
    pass


class EngineUnavailable(Unavailable, code="engine-unavailable", status=503, retryable=True, title="Engine unavailable"):
    """JetStream did not respond in time. A write may or may not be stored; a retry with the same id is safe."""


class EngineNoResponders(
    EngineUnavailable, code="engine-no-responders", status=502, retryable=True, title="No server of the engine responds"
):
    """No JetStream server is responsible for the stream at present, as while a leader is elected. A retry is safe."""


class Maintenance(EngineUnavailable, code="maintenance", status=503, retryable=True, title="Maintenance"):
    """A backup is being taken: writes wait for some seconds, and nothing of this one was stored. `Retry-After` has the time."""


class Unreachable(Unavailable, code="unreachable", status=503, retryable=True, title="Server unreachable"):
    """Raised by the SDK: no server responded before the deadline of the call, or a proxy responded in its place."""


class Overloaded(Unavailable, code="overloaded", status=503, retryable=True, title="Overloaded"):
    """The worker has reached a limit on open requests, live connections or buffered bytes. The request was not executed."""


class Draining(Unavailable, code="draining", status=503, retryable=True, title="Shutting down"):
    """The process is shutting down. Retry: another process, or this one after its restart, will respond."""


class RegistryStale(Unavailable, code="registry-stale", status=503, retryable=True, title="Registry stale"):
    """The worker lost contact with JetStream for so long that a revoked key could go unnoticed, so it refuses all callers."""


class EngineFull(Unavailable, code="storage-full", status=507, retryable=True, title="Storage limit reached"):
    """The queue is at its limit, or the store is full up to its reserve. The request was not stored."""


class StorageQuotaExceeded(EngineFull, code="storage-quota-exceeded", status=429, retryable=True, title="Storage quota exceeded"):
    """The tenant has used up its storage quota. Consume or delete data, or ask the operator for a larger quota."""


class EngineRefused(Unavailable, code="engine-refused", status=502, title="Engine refused the request"):
    """JetStream responded with an unexpected error; `detail` has its message."""


class DataDirectoryInUse(EngineRefused, code="data-directory-in-use", status=500, title="The data directory is in use"):
    """Another Postroad process uses the same data directory."""


class OptionIgnored(EngineRefused, code="engine-option-ignored", status=502, title="Engine ignored an option"):
    """The server is too old for an option, or another process has changed the same stream or consumer at the same time."""


class DiskFailed(PostroadError, code="disk-failed", status=500, title="The disk has failed"):
    """A sync of the store has failed, so that the disk lacks data that the kernel has in memory. The server ends."""


class CertificateInvalid(PostroadError, code="certificate-invalid", status=500, title="Certificate cannot be loaded"):
    """The TLS certificate of the server or its key cannot be loaded."""


KERNEL_ERRORS = tuple(ERRORS.values())
