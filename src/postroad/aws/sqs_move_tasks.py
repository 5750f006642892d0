"""SQS operations on message move tasks: start, list, cancel."""

from postroad.api.dead_letters import MoveRequest
from postroad.api.queues import QueueNotFound
from postroad.api.tasks import TaskNotFound, TaskState
from postroad.aws.calls import Call
from postroad.aws.errors import QUEUE_MISSING, AwsError
from postroad.aws.model import Values
from postroad.aws.policies import is_allowed
from postroad.aws.resource_names import queue_arn, queue_of_arn
from postroad.kernel.errors import PreconditionFailed
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_moves import MOVE, MessageMover
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import Tasks

_STATES = {
    TaskState.DONE: "COMPLETED",
    TaskState.CANCELLED: "CANCELLED",
    TaskState.FAILED: "FAILED",
}
_RATE_DEFAULT = 500


class SqsMoveTasks:
    def __init__(self, lifecycle: QueueLifecycle, mover: MessageMover, tasks: Tasks) -> None:
        self._lifecycle, self._mover, self._tasks = lifecycle, mover, tasks

    async def _source(self, call: Call) -> str:
        """The name of the dead-letter queue. Raises AwsError."""
        name = queue_of_arn(call.get("SourceArn"), call.account, "SourceArn")
        if not call.context.caller.may_use("queue", name):
            raise AwsError(
                "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."
            )
        try:
            await self._lifecycle.find(call.context.tenant, name)
        except QueueNotFound as exc:
            raise AwsError(
                "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."
            ) from exc
        return name

    async def start(self, call: Call) -> Values:
        source = await self._source(call)
        rate = call.integer("MaxNumberOfMessagesPerSecond", 1, 500, "It must be between 1 and 500.")
        records = self._lifecycle.records(call.context.caller)
        if not any(record.settings.dead_letter_queue == source for record in records):
            raise AwsError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
        target = call.get("DestinationArn")
        to = None if target is None else queue_of_arn(target, call.account, "DestinationArn")
        if to is not None and not is_allowed(call.identity.policy, "sqs:SendMessage", queue_arn(call.region, call.account, to)):
            raise AwsError("AccessDenied", "The session policy does not allow the action sqs:SendMessage on this resource.")
        if to == source:
            raise AwsError("InvalidParameterValue", "Source queue arn and destination queue arn cannot be the same.")
        await self._check_type(call, source, to)
        try:
            task = await self._mover.start(call.context, source, MoveRequest(to=to, rate_per_second=rate or _RATE_DEFAULT))
        except QueueNotFound as exc:
            raise AwsError("ResourceNotFoundException", QUEUE_MISSING) from exc
        except PreconditionFailed as exc:
            raise AwsError(
                "InvalidParameterValue",
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
            ) from exc
        return {"TaskHandle": task.id}

    async def _check_type(self, call: Call, source: str, to: str | None) -> None:
        """Raises AwsError if one of the queues is FIFO and the other is not."""
        known = [self._lifecycle.cached(call.context.tenant, name) for name in (source, to) if name is not None]
        if len({one.is_ordered for one in known if one is not None}) > 1:
            raise AwsError("InvalidParameterValue", "Source queue and destination queue must be the same type of queue.")

    async def list(self, call: Call) -> Values:
        source = await self._source(call)
        limit = call.integer(
            "MaxResults", 1, 10, "Value for parameter MaxResults is invalid. Reason: It must be between 1 and 10."
        )
        tasks = [one for one in self._tasks.of(call.context.caller) if one.kind == MOVE and one.target == source]
        return {"Results": [_entry(call, one) for one in tasks[: limit or 1]]} if tasks else {}

    async def cancel(self, call: Call) -> Values:
        try:
            task = await self._tasks.find(call.context.caller, call.get("TaskHandle"))
        except TaskNotFound as exc:
            raise AwsError("ResourceNotFoundException", "Task does not exist.") from exc
        if task.kind != MOVE:
            raise AwsError("ResourceNotFoundException", "Task does not exist.")
        if task.state.is_final:
            raise AwsError("UnsupportedOperation", "Only active tasks can be cancelled.")
        cancelled = await self._tasks.cancel(call.context, task.id)
        return {"ApproximateNumberOfMessagesMoved": cancelled.progress.moved}


def _entry(call: Call, task: TaskRecord) -> Values:
    state = _STATES.get(task.state) or ("CANCELLING" if task.is_cancel_wanted else "RUNNING")
    entry: Values = {
        "Status": state,
        "SourceArn": queue_arn(call.region, call.account, task.target),
        "MaxNumberOfMessagesPerSecond": task.wanted.get("ratePerSecond", _RATE_DEFAULT),
        "ApproximateNumberOfMessagesMoved": task.progress.moved,
        "ApproximateNumberOfMessagesToMove": task.progress.total,
        "StartedTimestamp": task.created_at_ms,
    }
    if state == "RUNNING":
        entry["TaskHandle"] = task.id
    if task.wanted.get("to"):
        entry["DestinationArn"] = queue_arn(call.region, call.account, str(task.wanted["to"]))
    if task.error:
        entry["FailureReason"] = task.error
    return entry
