"""Names of the queues in RabbitMQ that belong to a queue. Pure."""

from postroad.kernel.json import invalid_field
from postroad.queues.records import QueueRecord

_RESERVED = ".dlq"


def main_queue(prefix: str, record: QueueRecord) -> str:
    """The queue that has the ready and leased messages."""
    return f"{prefix}.{record.tenant}.{record.name}"


def dead_queue(prefix: str, record: QueueRecord) -> str:
    """The queue of the messages that RabbitMQ itself dead-letters."""
    return f"{main_queue(prefix, record)}{_RESERVED}"


def check_name(name: str) -> None:
    """Raises BodyInvalid for a name that is, in RabbitMQ, the name of a queue that belongs to another one."""
    if name.endswith(_RESERVED):
        raise invalid_field("$.backend", f"with RabbitMQ, the name of a queue must not end with `{_RESERVED}`: {name!r}")
