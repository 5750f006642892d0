"""Wiring of the AWS protocols on queues."""

from postroad.access.capability import AccessCapability
from postroad.aws.authentication import AwsAuthentication
from postroad.aws.calls import Action, Run, action
from postroad.aws.dispatcher import AwsDispatcher
from postroad.aws.model import operations
from postroad.aws.sessions import SessionTokens
from postroad.aws.sqs_messages import SqsMessages
from postroad.aws.sqs_move_tasks import SqsMoveTasks
from postroad.aws.sqs_queues import SqsQueues
from postroad.aws.sts import Sts
from postroad.http.routing import Route
from postroad.kernel.identity import RouteRequirement, Scope
from postroad.platform import Capability, Platform
from postroad.queues.capability import QueuesCapability


class AwsCapability(Capability):
    name = "aws"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        access = platform.use(AccessCapability)
        sessions = SessionTokens(platform.signer("aws session"), platform.platform_keys)
        authentication = AwsAuthentication(access.authenticator, platform.identities, access.aws_keys, sessions, platform.clock)
        self.actions = {"sqs": self._sqs_actions(), "sts": self._sts_actions(sessions)}
        self._dispatcher = AwsDispatcher(
            self.actions,
            authentication,
            access.authenticator,
            access.accounts,
            platform.settings.public_url,
        )

    def protocol(self) -> Route:
        return self._dispatcher.route()

    def _sqs_actions(self) -> dict[str, Action]:
        """The operations of SQS, each with the scope of the equivalent native operation."""
        native, platform = self.platform.use(QueuesCapability), self.platform
        queues = SqsQueues(native.lifecycle, native.stats_reader, native.browser)
        messages = SqsMessages(native.lifecycle, native.publisher, native.consumer, platform.clock)
        moves = SqsMoveTasks(native.lifecycle, native.mover, platform.tasks)
        known = operations()["sqs"]

        def served(name: str, run: Run, scope: Scope, *, allows_admin: bool = False, has_queue: bool = True) -> Action:
            return action(known[name], run, scope, allows_admin=allows_admin, has_queue=has_queue)

        found = [
            served("CreateQueue", queues.create_queue, Scope.ADMIN, has_queue=False),
            served("DeleteQueue", queues.delete_queue, Scope.ADMIN),
            served("GetQueueUrl", queues.get_queue_url, Scope.READ, allows_admin=True, has_queue=False),
            served("ListQueues", queues.list_queues, Scope.READ, allows_admin=True, has_queue=False),
            served("GetQueueAttributes", queues.get_queue_attributes, Scope.READ, allows_admin=True),
            served("SetQueueAttributes", queues.set_queue_attributes, Scope.ADMIN),
            served("ListDeadLetterSourceQueues", queues.list_dead_letter_source_queues, Scope.READ, allows_admin=True),
            served("PurgeQueue", queues.purge_queue, Scope.WRITE, allows_admin=True),
            served("TagQueue", queues.tag_queue, Scope.ADMIN),
            served("UntagQueue", queues.untag_queue, Scope.ADMIN),
            served("ListQueueTags", queues.list_queue_tags, Scope.READ, allows_admin=True),
            served("AddPermission", queues.add_permission, Scope.ADMIN),
            served("RemovePermission", queues.remove_permission, Scope.ADMIN),
            served("SendMessage", messages.send_message, Scope.PUBLISH),
            served("SendMessageBatch", messages.send_message_batch, Scope.PUBLISH),
            served("ReceiveMessage", messages.receive_message, Scope.CONSUME),
            served("DeleteMessage", messages.delete_message, Scope.CONSUME),
            served("DeleteMessageBatch", messages.delete_message_batch, Scope.CONSUME),
            served("ChangeMessageVisibility", messages.change_message_visibility, Scope.CONSUME),
            served("ChangeMessageVisibilityBatch", messages.change_message_visibility_batch, Scope.CONSUME),
            served("StartMessageMoveTask", moves.start, Scope.WRITE, allows_admin=True, has_queue=False),
            served("ListMessageMoveTasks", moves.list, Scope.READ, allows_admin=True, has_queue=False),
            served("CancelMessageMoveTask", moves.cancel, Scope.WRITE, allows_admin=True, has_queue=False),
        ]
        return {one.operation.name: one for one in found}

    def _sts_actions(self, sessions: SessionTokens) -> dict[str, Action]:
        sts, known = Sts(sessions, self.platform.clock), operations()["sts"]
        runs = {
            "GetCallerIdentity": sts.get_caller_identity,
            "GetSessionToken": sts.get_session_token,
            "AssumeRole": sts.assume_role,
        }
        return {name: action(known[name], run, RouteRequirement.IDENTITY, has_queue=False) for name, run in runs.items()}


CAPABILITY = AwsCapability
