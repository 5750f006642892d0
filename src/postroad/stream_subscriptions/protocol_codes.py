"""Error codes of the Durable Streams protocol for subscriptions."""

from postroad.api.stream_subscriptions import (
    LeaseHeld,
    NothingPending,
    OffsetRefused,
    SubscriptionNotFound,
    WakeFenced,
    WebhookRefused,
)
from postroad.kernel.errors import (
    AlreadyExists,
    InvalidParameter,
    InvalidRequest,
    PostroadError,
    PreconditionFailed,
    Unauthenticated,
)

_CODES: tuple[tuple[type[PostroadError], str], ...] = (
    (SubscriptionNotFound, "SUBSCRIPTION_NOT_FOUND"),
    (AlreadyExists, "SUBSCRIPTION_ALREADY_EXISTS"),
    (WebhookRefused, "WEBHOOK_URL_REJECTED"),
    (WakeFenced, "FENCED"),
    (OffsetRefused, "INVALID_OFFSET"),
    (LeaseHeld, "ALREADY_CLAIMED"),
    (NothingPending, "NO_PENDING_WORK"),
    (Unauthenticated, "TOKEN_INVALID"),
    (InvalidParameter, "INVALID_REQUEST"),
    (InvalidRequest, "INVALID_REQUEST"),
    (PreconditionFailed, "INVALID_REQUEST"),
)


def protocol_code(error: PostroadError) -> str:
    """The protocol's code of an error; Postroad's own code in the same style if the protocol has none."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), error.code.upper().replace("-", "_"))
