"""What can go wrong with subscriptions. `word` is what the protocol calls it."""

from postroad.kernel.errors import (
    AlreadyExists,
    Conflicting,
    InvalidParameter,
    InvalidRequest,
    Missing,
    NotNow,
    PostroadError,
    Unauthenticated,
)


class SubscriptionNotFound(Missing, code="subscription-not-found", status=404, title="No such subscription"):
    """There is no subscription with this id, or it is of streams that the key is kept from."""


class WebhookRefused(InvalidRequest, code="webhook-refused", status=400, title="The webhook's URL cannot be used"):
    """A webhook is called by `https`, on a public address; `http` only on `localhost`."""


class WakeFenced(Conflicting, code="wake-fenced", status=409, title="Another wake has taken its place"):
    """The wake was done, released or its lease has ended; what belongs to it no longer counts."""


class OffsetRefused(Conflicting, code="offset-refused", status=409, title="The offset cannot be acknowledged"):
    """An acknowledged offset lies before the last one or beyond the stream's end, or its stream is not subscribed to."""


class WakeTaken(Conflicting, code="wake-taken", status=409, title="Somebody else has it"):
    """Another worker holds the lease; `error.current_holder` says which."""


class NothingToDo(Conflicting, code="nothing-to-do", status=409, title="Nothing is waiting"):
    """Everything in the subscription's streams is acknowledged."""


_WORDS: tuple[tuple[type[PostroadError], str], ...] = (
    (SubscriptionNotFound, "SUBSCRIPTION_NOT_FOUND"),
    (AlreadyExists, "SUBSCRIPTION_ALREADY_EXISTS"),
    (WebhookRefused, "WEBHOOK_URL_REJECTED"),
    (WakeFenced, "FENCED"),
    (OffsetRefused, "INVALID_OFFSET"),
    (WakeTaken, "ALREADY_CLAIMED"),
    (NothingToDo, "NO_PENDING_WORK"),
    (Unauthenticated, "TOKEN_INVALID"),
    (InvalidParameter, "INVALID_REQUEST"),
    (InvalidRequest, "INVALID_REQUEST"),
    (NotNow, "INVALID_REQUEST"),
)


def word(error: PostroadError) -> str:
    """The protocol's word for it; our own, written as the protocol writes, where it has none."""
    return next((word for kind, word in _WORDS if isinstance(error, kind)), error.code.upper().replace("-", "_"))
