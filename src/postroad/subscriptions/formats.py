"""Forms of deliveries that another protocol defines. The capability of that protocol registers them."""

from dataclasses import dataclass
from typing import Protocol

from postroad.api.subscriptions import PushFormat
from postroad.outbound.rules import HeaderLines
from postroad.queues.records import StoredMessage
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.records import SubscriptionRecord


class NotDeliverable(Exception):
    """The message cannot have this form. It becomes a dead letter, with the text as its reason."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The body and the headers of a request."""

    body: bytes
    headers: HeaderLines


class DeliveryFormat(Protocol):
    def push_request(self, record: SubscriptionRecord, message: OutgoingMessage) -> PushRequest:
        """Raises NotDeliverable, and EngineUnavailable while what it needs is not loaded."""

    def queue_message(self, record: SubscriptionRecord, message: OutgoingMessage, now_ms: int) -> StoredMessage:
        """The message of a queue. Raises NotDeliverable, EngineUnavailable."""

    def outcome_of(self, status: int) -> Outcome:
        """How the endpoint's response is judged."""


class DeliveryFormats:
    def __init__(self) -> None:
        self._known: dict[PushFormat, DeliveryFormat] = {}

    def register(self, name: PushFormat, form: DeliveryFormat) -> None:
        self._known[name] = form

    def of(self, record: SubscriptionRecord) -> DeliveryFormat | None:
        """None for a format of our own."""
        return self._known.get(record.format)
