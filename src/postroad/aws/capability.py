"""Wiring of the AWS protocols on queues and topics."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.capability import AccessCapability
from postroad.access.settings import AccessSettings
from postroad.api.subscriptions import PushFormat
from postroad.aws.authentication import AwsAuthentication
from postroad.aws.calls import Action, Prepare, Run, action
from postroad.aws.dispatcher import AwsDispatcher
from postroad.aws.model import operations
from postroad.aws.sessions import SessionTokens
from postroad.aws.sns_certificate_routes import SnsCertificateRoutes
from postroad.aws.sns_confirmations import SnsConfirmations
from postroad.aws.sns_format import SnsFormat
from postroad.aws.sns_publishing import SnsPublishing
from postroad.aws.sns_signing import SIGNING_KEYS_BUCKET, SigningKeyRecord, SnsSigningKeys
from postroad.aws.sns_subscriptions import SnsSubscriptions
from postroad.aws.sns_tokens import SnsTokens
from postroad.aws.sns_topics import SnsTopics
from postroad.aws.sqs_messages import SqsMessages
from postroad.aws.sqs_move_tasks import SqsMoveTasks
from postroad.aws.sqs_queues import SqsQueues
from postroad.aws.sts import Sts
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.identity import RouteRequirement, Scope
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.subscriptions.capability import SubscriptionsCapability
from postroad.topics.capability import TopicsCapability

_KEY_SECONDS = 30.0


class AwsCapability(Capability):
    name = "aws"
    buckets = (SIGNING_KEYS_BUCKET,)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "certificate": {"pattern": "^[A-Za-z0-9.-]{1,100}$", "description": "File name of the certificate."}
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        access = platform.use(AccessCapability)
        sessions = SessionTokens(platform.signer("aws session"), platform.platform_keys)
        authentication = AwsAuthentication(access.authenticator, platform.identities, access.aws_keys, sessions, platform.clock)
        self.signing_keys = SnsSigningKeys(
            platform.table(SIGNING_KEYS_BUCKET, SigningKeyRecord), SecretCipher(platform.platform_keys), platform.clock
        )
        self._tokens = SnsTokens(platform.signer("sns token"), platform.clock)
        self._topics, self._subscriptions = platform.use(TopicsCapability), platform.use(SubscriptionsCapability)
        self._form = SnsFormat(self.signing_keys, self._tokens, self._topics.lifecycle)
        self._subscriptions.formats.register(PushFormat.SNS, self._form)
        self.confirmations = SnsConfirmations(
            self._subscriptions.table,
            self._subscriptions.service,
            platform.outbound,
            self._form,
            self.signing_keys,
            self._tokens,
            platform.clock,
            allow_loopback=platform.settings.section(AccessSettings).open,
        )
        self.actions = {"sqs": self._sqs_actions(), "sns": self._sns_actions(), "sts": self._sts_actions(sessions)}
        self._dispatcher = AwsDispatcher(
            self.actions,
            authentication,
            access.authenticator,
            access.accounts,
            platform.settings.public_url,
        )

    def protocol(self) -> Route:
        return self._dispatcher.route()

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.signing_keys.table,)

    def routes(self) -> Sequence[Route]:
        return SnsCertificateRoutes(self.signing_keys).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(every(_KEY_SECONDS, self.signing_keys.maintain, "signing key of SNS"), Role.CONTROL, leader_only=True),
            BackgroundJob(self.confirmations.run, Role.DELIVERY, leader_only=True),
        )

    def _sqs_actions(self) -> dict[str, Action]:
        """The operations of SQS, each with the scope of the equivalent native operation."""
        native, platform = self.platform.use(QueuesCapability), self.platform
        queues = SqsQueues(native.lifecycle, native.stats_reader, native.browser)
        messages = SqsMessages(native.lifecycle, native.publisher, native.consumer, platform.clock)
        moves = SqsMoveTasks(native.lifecycle, native.mover, platform.tasks)
        known = operations()["sqs"]

        def served(
            name: str,
            run: Run,
            scope: Scope,
            *,
            allows_admin: bool = False,
            has_queue: bool = True,
            named: str = "",
            prepare: Prepare | None = None,
        ) -> Action:
            return action(known[name], run, scope, allows_admin=allows_admin, has_queue=has_queue, name=named, prepare=prepare)

        found = [
            served("CreateQueue", queues.create_queue, Scope.ADMIN, has_queue=False, named="QueueName"),
            served("DeleteQueue", queues.delete_queue, Scope.ADMIN),
            served("GetQueueUrl", queues.get_queue_url, Scope.READ, allows_admin=True, has_queue=False, named="QueueName"),
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
            served("SendMessage", messages.send_message, Scope.PUBLISH, prepare=messages.prepare_send),
            served("SendMessageBatch", messages.send_message_batch, Scope.PUBLISH),
            served("ReceiveMessage", messages.receive_message, Scope.CONSUME, prepare=messages.prepare_receive),
            served("DeleteMessage", messages.delete_message, Scope.CONSUME, prepare=messages.prepare_delete),
            served("DeleteMessageBatch", messages.delete_message_batch, Scope.CONSUME, prepare=messages.prepare_delete_batch),
            served("ChangeMessageVisibility", messages.change_message_visibility, Scope.CONSUME),
            served("ChangeMessageVisibilityBatch", messages.change_message_visibility_batch, Scope.CONSUME),
            served("StartMessageMoveTask", moves.start, Scope.WRITE, allows_admin=True, has_queue=False, named="SourceArn"),
            served("ListMessageMoveTasks", moves.list, Scope.READ, allows_admin=True, has_queue=False, named="SourceArn"),
            served("CancelMessageMoveTask", moves.cancel, Scope.WRITE, allows_admin=True, has_queue=False),
        ]
        return {one.operation.name: one for one in found}

    def _sns_actions(self) -> dict[str, Action]:
        """The operations of SNS, each with the scope of the equivalent native operation."""
        known, lifecycle = operations()["sns"], self._topics.lifecycle
        queues, service, clock = self.platform.use(QueuesCapability).lifecycle, self._subscriptions.service, self.platform.clock
        subscriptions = SnsSubscriptions(
            lifecycle, queues, service, self._subscriptions.rewinder, self.confirmations, self._tokens, clock
        )
        topics = SnsTopics(lifecycle, service, subscriptions.apply_topic_policy, clock)
        publishing = SnsPublishing(lifecycle, self._topics.publisher)
        topic, resource, one = "TopicArn", "ResourceArn", "SubscriptionArn"

        def served(name: str, run: Run, scope: Scope, arn: str = "", *, reads: bool = False, is_open: bool = False) -> Action:
            return action(known[name], run, scope, allows_admin=reads, has_queue=False, arn=arn, allows_unsigned=is_open)

        found = [
            action(known["CreateTopic"], topics.create_topic, Scope.ADMIN, has_queue=False, name="Name"),
            served("DeleteTopic", topics.delete_topic, Scope.ADMIN, topic),
            served("ListTopics", topics.list_topics, Scope.READ, reads=True),
            served("GetTopicAttributes", topics.get_topic_attributes, Scope.READ, topic, reads=True),
            served("SetTopicAttributes", topics.set_topic_attributes, Scope.ADMIN, topic),
            served("TagResource", topics.tag_resource, Scope.ADMIN, resource),
            served("UntagResource", topics.untag_resource, Scope.ADMIN, resource),
            served("ListTagsForResource", topics.list_tags_for_resource, Scope.READ, resource, reads=True),
            served("AddPermission", topics.add_permission, Scope.ADMIN, topic),
            served("RemovePermission", topics.remove_permission, Scope.ADMIN, topic),
            served("Publish", publishing.publish, Scope.PUBLISH, f"{topic} TargetArn"),
            served("PublishBatch", publishing.publish_batch, Scope.PUBLISH, topic),
            served("Subscribe", subscriptions.subscribe, Scope.WRITE, topic),
            served("ConfirmSubscription", subscriptions.confirm_subscription, Scope.WRITE, topic, is_open=True),
            served("Unsubscribe", subscriptions.unsubscribe, Scope.WRITE, one, is_open=True),
            served("GetSubscriptionAttributes", subscriptions.get_subscription_attributes, Scope.READ, one, reads=True),
            served("SetSubscriptionAttributes", subscriptions.set_subscription_attributes, Scope.WRITE, one),
            served("ListSubscriptions", subscriptions.list_subscriptions, Scope.READ, reads=True),
            served("ListSubscriptionsByTopic", subscriptions.list_subscriptions_by_topic, Scope.READ, topic, reads=True),
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
