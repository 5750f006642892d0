"""Calls of `client.queues.dead_letters`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.dead_letters import DeadMessage
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import segment


class QueuesDeadLettersCalls:
    @operation
    def get(self, queue: str, message: str) -> Call[DeadMessage]:
        """Show a dead letter with its payload. Raises MessageNotFound, QueueNotFound."""
        return Call(method="GET", path=f"/v1/queues/{segment(queue)}/dlq/{segment(message)}", response=DeadMessage)

    @operation
    def delete(self, queue: str, message: str) -> Call[None]:
        """Delete a dead letter. Raises MessageNotFound, QueueNotFound."""
        return Call(method="DELETE", path=f"/v1/queues/{segment(queue)}/dlq/{segment(message)}")


class QueuesDeadLetters(QueuesDeadLettersCalls, SyncNamespace):
    pass


class AsyncQueuesDeadLetters(QueuesDeadLettersCalls, AsyncNamespace):
    pass
