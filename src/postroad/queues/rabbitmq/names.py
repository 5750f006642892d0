"""Names of the queues in RabbitMQ that belong to a queue. Pure."""

import re

from postroad.kernel.json import invalid_field
from postroad.queues.records import QueueRecord

_RESERVED = re.compile(r".*\.(dlq|retry\.[0-9]+)")


def main_queue(prefix: str, record: QueueRecord) -> str:
    """The queue that has the ready and leased messages."""
    return f"{prefix}.{record.tenant}.{record.name}"


def dead_queue(prefix: str, record: QueueRecord) -> str:
    """The queue of the messages that RabbitMQ itself dead-letters."""
    return f"{main_queue(prefix, record)}.dlq"


def check_name(name: str) -> None:
    """Raises BodyInvalid for a name that is, in RabbitMQ, the name of a queue that belongs to another one."""
    if _RESERVED.fullmatch(name):
        raise invalid_field("$.backend", f"with RabbitMQ, the name of a queue must not end with `.dlq` or `.retry.<n>`: {name!r}")
