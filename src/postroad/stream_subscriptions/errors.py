"""What the protocol calls that which can go wrong with subscriptions."""

from postroad.kernel.errors import (
    AlreadyExists,
    InvalidParameter,
    InvalidRequest,
    LeaseHeld,
    NothingPending,
    OffsetRefused,
    PostroadError,
    PreconditionFailed,
    SubscriptionNotFound,
    Unauthenticated,
    WakeFenced,
    WebhookRefused,
)

_WORDS: tuple[tuple[type[PostroadError], str], ...] = (
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


def word(error: PostroadError) -> str:
    """The protocol's word for it; our own, written as the protocol writes, where it has none."""
    return next((word for kind, word in _WORDS if isinstance(error, kind)), error.code.upper().replace("-", "_"))
