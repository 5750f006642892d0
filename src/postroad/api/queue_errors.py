"""Errors of queues, their messages and leases."""

from postroad.kernel.errors import ConflictError, InvalidRequest, NotFound, Unavailable


class QueueNotFound(NotFound, code="queue-not-found", status=404, title="Queue not found"):
    """The tenant has no queue with this name, and `autoCreateQueues` is off."""


class MessageNotFound(NotFound, code="message-not-found", status=404, title="Message not found"):
    """No message has this id in the queue or its dead letters."""


class IdempotencyMismatch(InvalidRequest, code="idempotency-mismatch", status=422, title="Idempotency key reused"):
    """The idempotency key was used before with a different body."""


class SchemaMismatch(InvalidRequest, code="schema-mismatch", status=422, title="Payload does not match the schema"):
    """The payload does not match the JSON Schema of the queue or topic; `errors` lists the violations with their paths."""


class SchemaTooSlow(InvalidRequest, code="schema-too-slow", status=422, title="Validation takes too long"):
    """The JSON Schema of the queue or topic exceeds its budget of processor time or memory for this payload. Simplify it."""


class ReceiptInvalid(ConflictError, code="receipt-invalid", status=400, title="Invalid receipt"):
    """The receipt was not issued by this installation for this queue, or it was altered."""


class LeaseExpired(ConflictError, code="lease-expired", status=409, title="Lease expired"):
    """The visibility timeout of the receipt has passed. The message is or will be delivered again."""


class AlreadySettled(ConflictError, code="already-settled", status=409, title="Lease already ended"):
    """The lease was ended before by another operation: an ack, or a nack with another action. The same one may be repeated."""


class JobWasCancelled(ConflictError, code="job-cancelled", status=409, title="Job cancelled"):
    """The job was cancelled while its message was leased. Stop the work: the message is not delivered again."""


class BackendCannot(ConflictError, code="backend-cannot", status=409, title="Not possible with this backend"):
    """The backend of the queue does not support the operation; `detail` names an alternative."""


class BackendUnavailable(Unavailable, code="backend-unavailable", status=503, retryable=True, title="Backend unavailable"):
    """RabbitMQ is unreachable, blocked or without a leader for the queue. A write may or may not be stored."""
