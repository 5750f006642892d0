"""The backend of a queue: which one it gets, what it supports, and which settings it excludes. Pure."""

from dataclasses import dataclass

from msgspec import UNSET

from postroad.api.queues import ENGINE, RABBITMQ, Backend, QueueSettings
from postroad.kernel.json import invalid_field
from postroad.queues.records import QueueRecord

_ENGINE_FEATURES = ("peek", "remove", "cancel", "geo", "ordered", "longLeases")
_UNORDERED_FEATURES = ("priority", "uniqueKey", "fairness", "maxInFlight")
_RABBITMQ_FEATURES = ("amqp",)


def features_of(record: QueueRecord) -> tuple[str, ...]:
    """What the queue supports beyond the operations that every queue has."""
    if record.backend == RABBITMQ:
        return (*_RABBITMQ_FEATURES, "longLeases") if record.long_lease_ms else _RABBITMQ_FEATURES
    return _ENGINE_FEATURES if record.is_ordered else (*_ENGINE_FEATURES, *_UNORDERED_FEATURES)


@dataclass(frozen=True, slots=True)
class NewQueues:
    """`default`: the backend of queues that name none. `lease_ms_max`: longest lease in RabbitMQ."""

    default: Backend
    has_rabbitmq: bool
    lease_ms_max: int

    def backend_of(self, settings: QueueSettings, known: QueueRecord | None) -> Backend:
        """The backend of a queue that is created, or is `known` already. Raises BodyInvalid for a change."""
        if known is not None:
            if settings.backend not in (UNSET, known.backend):
                raise invalid_field("$.backend", f"is `{known.backend}` and cannot be changed; create another queue")
            return known.backend
        if settings.backend is not UNSET:
            return settings.backend
        return ENGINE if _excluded(settings) else self.default

    def check(self, backend: Backend, settings: QueueSettings) -> None:
        """Raises BodyInvalid with the path for settings that the backend does not support."""
        if backend == ENGINE:
            return
        if not self.has_rabbitmq:
            raise invalid_field("$.backend", "this installation has no RabbitMQ: POSTROAD_RABBITMQ_URL is not set")
        for name in _excluded(settings):
            raise invalid_field(f"$.{name}", "is not supported by queues in RabbitMQ; leave it out, or use the backend `engine`")

    def check_lease(self, backend: Backend, lease_ms: int | None, long_lease_ms: int, held_ms: int = 0) -> None:
        """Raises BodyInvalid for a lease that is too long for the backend. `long_lease_ms`: that of the record. `held_ms`: the
        time since the lease began, of one that is extended."""
        limit = long_lease_ms or self.lease_ms_max
        if backend == RABBITMQ and lease_ms is not None and lease_ms + held_ms > limit:
            since = ", extensions included," if held_ms else ""
            reason = f"at most {limit}{since} in RabbitMQ, which ends the deliveries of a consumer that holds one for longer"
            raise invalid_field("$.visibilityTimeoutMs", reason)


def _excluded(settings: QueueSettings) -> list[str]:
    """The settings that only queues in the engine have."""
    given = {"ordered": settings.ordered, "geo": settings.geo is not None, "maxInFlight": settings.max_in_flight > 0}
    return [name for name, is_given in given.items() if is_given]
