"""The one table of expected failures: code, HTTP status, whether trying again can help.

The classes below *are* the table. Responses, the docs page and (later) the SDK's exceptions are made from `ERRORS`.

    PostroadError
    ├── InvalidRequest      what the caller sent cannot be used        400, 413, 415, 422 …
    ├── Refused             who the caller is, or may do               401, 403
    ├── Missing             what the caller names is not there         404, 405
    ├── Conflicting         the state of things forbids it             409
    └── Unavailable         not now, or no room                        5xx
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

ERRORS: dict[str, type["PostroadError"]] = {}


class PostroadError(Exception):
    """Something went wrong inside Postroad; the request id finds it in the logs."""

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
        """`headers`: what a protocol wants said in the answer's head."""
        super().__init__(detail or self.title)
        self.headers = headers
        self.detail = detail
        self.request_id = ""  # set by the SDK, so that a report can name it
        self.retry_after = retry_after
        self.extra = extra or {}


ERRORS[PostroadError.code] = PostroadError


# What the caller sent cannot be used.


class InvalidRequest(PostroadError):
    pass


class MalformedJson(InvalidRequest, code="malformed-json", status=400, title="The body is not JSON"):
    """The body could not be parsed as JSON in UTF-8."""


class InvalidParameter(InvalidRequest, code="invalid-parameter", status=400, title="A parameter is not valid"):
    """A path segment, query parameter or header has a form that is not allowed here."""


class BodyInvalid(InvalidRequest, code="invalid-body", status=422, title="The body does not fit"):
    """A field of the body is missing, unknown, of the wrong type or out of range; `errors` names the field."""


class IdempotencyMismatch(InvalidRequest, code="idempotency-mismatch", status=422, title="The idempotency key was used before"):
    """The same idempotency key came with another body."""


class SchemaMismatch(InvalidRequest, code="schema-mismatch", status=422, title="The payload does not fit the queue's schema"):
    """The queue has a JSON Schema, and the payload does not fit it; `errors` names what and where."""


class WebhookRefused(InvalidRequest, code="webhook-refused", status=400, title="The webhook's URL cannot be used"):
    """A webhook is called by `https`, on a public address; `http` only on `localhost`."""


class TooLarge(InvalidRequest, code="too-large", status=413, title="Too large"):
    """The body, or one message of it, is over the limit that `detail` names."""


class MalformedRequest(InvalidRequest, code="malformed-request", status=400, title="Not HTTP"):
    """The connection did not speak HTTP/1.1; it was closed."""


class HeaderTimeout(InvalidRequest, code="request-timeout", status=408, retryable=True, title="Request timeout"):
    """The request's head did not arrive in time; the connection was closed."""


class BodyTooSlow(InvalidRequest, code="body-timeout", status=408, retryable=True, title="Request timeout"):
    """The request's body did not arrive in time. Nothing was done."""


class HeadersTooLarge(InvalidRequest, code="headers-too-large", status=431, title="Headers too large"):
    """The request's headers are over the limit."""


class UnsupportedMediaType(InvalidRequest, code="unsupported-media-type", status=415, title="Unsupported media type"):
    """The body's content type is not one that this route takes."""


# Who the caller is, or may do.


class AuthError(PostroadError):
    pass


class Unauthenticated(AuthError, code="unauthenticated", status=401, title="Not authenticated"):
    """No credential was sent, or it is unknown, disabled or expired."""


class Forbidden(AuthError, code="forbidden", status=403, title="Not allowed"):
    """The credential is good, but does not allow this; `detail` names the scope that is missing."""


class ProducerFenced(AuthError, code="producer-fenced", status=403, title="Another producer has taken over"):
    """A producer of this id with a higher epoch has written since; `Producer-Epoch` says which."""


class TenantDisabled(AuthError, code="tenant-disabled", status=403, title="The tenant is disabled"):
    """The tenant was disabled, or is being deleted. None of its credentials work until it is enabled."""


class RateLimited(AuthError, code="rate-limited", status=429, retryable=True, title="Too many tries"):
    """Too many requests with credentials that are not known came from this address; `Retry-After` says when to try again."""


# What the caller names is not there.


class NotFound(PostroadError):
    pass


class RouteNotFound(NotFound, code="route-not-found", status=404, title="No such path"):
    """Nothing is served at this path."""


class QueueNotFound(NotFound, code="queue-not-found", status=404, title="No such queue"):
    """The tenant has no queue of this name, and queues are not created by publishing to them."""


class StreamNotFound(NotFound, code="stream-not-found", status=404, title="No such stream"):
    """There is no stream of this name, or it has expired."""


class SessionNotFound(NotFound, code="session-not-found", status=404, title="No such session"):
    """There is no session of this id, or it has expired."""


class StreamGone(NotFound, code="stream-gone", status=410, title="The stream was deleted"):
    """It was deleted, and only the streams that were forked from it still read what it had."""


class SubscriptionNotFound(NotFound, code="subscription-not-found", status=404, title="No such subscription"):
    """There is no subscription with this id, or it is of streams that the key is kept from."""


class MessageNotFound(NotFound, code="message-not-found", status=404, title="No such message"):
    """There is no message with this id where it was looked for (any more)."""


class JobNotFound(NotFound, code="job-not-found", status=404, title="No such job"):
    """The tenant has no job with this id: it never had, it ended too long ago, or it is of a queue that the key is kept from."""


class TenantNotFound(NotFound, code="tenant-not-found", status=404, title="No such tenant"):
    """A platform key named a tenant that does not exist."""


class KeyNotFound(NotFound, code="key-not-found", status=404, title="No such key"):
    """There is no key with this id, or it is not yours to see."""


class SecretNotFound(NotFound, code="secret-not-found", status=404, title="No such secret"):
    """The tenant has no JWT secret with this id."""


class InviteNotFound(NotFound, code="invite-not-found", status=404, title="No such invite"):
    """The invite's id or code is not known, or the invite was revoked."""


class InviteEnded(NotFound, code="invite-ended", status=410, title="The invite has ended"):
    """The invite was used before, or its time is over. Ask for another one."""


class TaskNotFound(NotFound, code="task-not-found", status=404, title="No such task"):
    """The tenant has no task with this id, or it ended more than a week ago."""


class MethodNotAllowed(NotFound, code="method-not-allowed", status=405, title="Method not allowed"):
    """The path exists, but not with this method; `Allow` lists the methods it has."""


# The state of things forbids it.


class ConflictError(PostroadError):
    pass


class Conflict(ConflictError, code="conflict", status=409, retryable=True, title="Changed meanwhile"):
    """What the write was based on is no longer the latest."""


class AlreadyExists(ConflictError, code="already-exists", status=409, title="There is one already"):
    """Something of this name exists; `detail` says what."""


class PreconditionFailed(ConflictError, code="not-allowed-now", status=409, title="Not as things are"):
    """What was asked for would break something that must hold; `detail` says what."""


class StreamExists(ConflictError, code="stream-exists", status=409, title="There is such a stream, of another kind"):
    """A stream of this name exists with another content type, lifetime, origin or state than was asked for."""


class StreamClosed(ConflictError, code="stream-closed", status=409, title="The stream is closed"):
    """Nothing can be appended any more; `Stream-Next-Offset` is where it ends."""


class ContentTypeMismatch(ConflictError, code="content-type-mismatch", status=409, title="Not the stream's content type"):
    """What is appended must be of the type that the stream was created with."""


class SequenceConflict(ConflictError, code="sequence-conflict", status=409, title="The sequence does not increase"):
    """A `Stream-Seq` must be greater, byte by byte, than the last one that was accepted."""


class ProducerGap(ConflictError, code="producer-gap", status=409, title="A producer's append is missing"):
    """The producer's sequence skips one: `Producer-Expected-Seq` says which is next."""


class WakeFenced(ConflictError, code="wake-fenced", status=409, title="Another wake has taken its place"):
    """The wake was done, released or its lease has ended; what belongs to it no longer counts."""


class OffsetRefused(ConflictError, code="offset-refused", status=409, title="The offset cannot be acknowledged"):
    """An acknowledged offset lies before the last one or beyond the stream's end, or its stream is not subscribed to."""


class LeaseHeld(ConflictError, code="wake-taken", status=409, title="Somebody else has it"):
    """Another worker holds the lease; `error.current_holder` says which."""


class NothingPending(ConflictError, code="nothing-to-do", status=409, title="Nothing is waiting"):
    """Everything in the subscription's streams is acknowledged."""


class ReceiptInvalid(ConflictError, code="receipt-invalid", status=400, title="Not a receipt of this queue"):
    """The receipt was not made by this installation for this queue, or it was altered."""


class LeaseExpired(ConflictError, code="lease-expired", status=409, title="The lease has expired"):
    """The receipt's visibility timeout has passed; the message is, or will be, delivered again."""


# Not now, or no room.


class Unavailable(PostroadError):
    pass


class EngineUnavailable(Unavailable, code="engine-unavailable", status=503, retryable=True, title="The engine did not answer"):
    """No leader answered in time. A write may or may not be stored; sending it again with the same id is safe."""


class Unreachable(Unavailable, code="unreachable", status=503, retryable=True, title="The server did not answer"):
    """Raised by the SDK: no server answered before the call's deadline, or something in between answered for it."""


class Overloaded(Unavailable, code="overloaded", status=503, retryable=True, title="Too much is waiting"):
    """More writes are waiting than the worker will hold. Nothing of this request was stored."""


class Draining(Unavailable, code="draining", status=503, retryable=True, title="Shutting down"):
    """This process is stopping; another one, or this one after its restart, will answer."""


class RegistryStale(Unavailable, code="out-of-touch", status=503, retryable=True, title="Cannot tell who is calling"):
    """This worker has not heard from the engine for so long that a key may have been revoked without its knowing."""


class EngineFull(Unavailable, code="storage-full", status=507, retryable=True, title="No room"):
    """The queue is at its limit, or the engine is out of storage. Nothing was stored."""


class EngineRefused(Unavailable, code="engine-refused", status=502, title="The engine refused the request"):
    """The engine answered with an error that Postroad does not expect; `detail` has its words."""
