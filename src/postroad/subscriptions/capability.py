"""Wiring of subscriptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.access.settings import AccessSettings
from postroad.api.subscriptions import FilterInvalid
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.membership import MemberRecord, Membership
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.ids import new_request_id
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.queues.capability import QueuesCapability
from postroad.settings import Settings
from postroad.subscriptions.attempt_log import AttemptLog, attempts_stream
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.dead_letter_routes import SubscriptionDeadLetterRoutes
from postroad.subscriptions.dead_letters import SubscriptionDeadLetterStore
from postroad.subscriptions.dispatcher import Dispatcher
from postroad.subscriptions.endpoints import Endpoints
from postroad.subscriptions.events import EVENTS
from postroad.subscriptions.formats import DeliveryFormats
from postroad.subscriptions.live_routes import LiveSubscriptionRoutes
from postroad.subscriptions.live_subscriptions import LiveSubscriptions
from postroad.subscriptions.log_reader import LogReader
from postroad.subscriptions.message_cache import MessageCache
from postroad.subscriptions.progress_store import ProgressStore, progress_stream
from postroad.subscriptions.push_client import PushClient
from postroad.subscriptions.queue_target import QueueTarget
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.redrive import REDRIVE, SubscriptionRedriver
from postroad.subscriptions.replay import REPLAY, Replayer
from postroad.subscriptions.rewinding import Rewinder
from postroad.subscriptions.routes import SubscriptionRoutes
from postroad.subscriptions.service import SUBSCRIPTIONS_BUCKET, Subscriptions
from postroad.subscriptions.settings import SubscriptionsSettings
from postroad.subscriptions.status import StatusReader
from postroad.subscriptions.takeover import Takeover
from postroad.subscriptions.testing import DeliveryTester
from postroad.subscriptions.topic_followers import TopicFollowers
from postroad.tasks.service import Handler
from postroad.telemetry.live_sections import LiveSection
from postroad.topics.capability import TopicsCapability
from postroad.topics.lifecycle import Dependent

MEMBERS_BUCKET = "postroad_delivery_members"


class SubscriptionsCapability(Capability):
    name = "subscriptions"
    errors = (FilterInvalid,)
    events = EVENTS
    buckets = (SUBSCRIPTIONS_BUCKET, MEMBERS_BUCKET)
    ephemeral_buckets = (MEMBERS_BUCKET,)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        connection, committers, clock = platform.connection, platform.committers, platform.clock
        queues, topics = platform.use(QueuesCapability), platform.use(TopicsCapability)
        chosen = platform.settings.section(SubscriptionsSettings)
        self.table = platform.table(SUBSCRIPTIONS_BUCKET, SubscriptionRecord)
        self.members_table = platform.table(MEMBERS_BUCKET, MemberRecord)
        self.membership = Membership(self.members_table, f"{platform.worker}-{new_request_id()}")
        self.push = PushClient(platform.outbound, clock, allow_loopback=platform.settings.section(AccessSettings).open)
        self._endpoints = Endpoints(SecretCipher(platform.platform_keys))
        self.table.on_change(self._endpoints.on_change)
        self._progress = ProgressStore(connection, committers)
        self._attempts = AttemptLog(connection, committers)
        self._dead_letters = SubscriptionDeadLetterStore(connection, committers, queues.dead_letters)
        self.service = Subscriptions(
            connection,
            self.table,
            topics.lifecycle,
            queues.lifecycle,
            self.push,
            self._endpoints,
            self._progress,
            self._attempts,
            self._dead_letters,
            platform.outbox,
            platform.audit,
            clock,
            subscriptions_max=chosen.subscriptions_max,
        )
        self.formats = DeliveryFormats()
        self._attempter = Attempter(
            self.push,
            QueueTarget(queues.publisher, queues.lifecycle, queues.numbered_deliveries),
            self._endpoints,
            self._dead_letters,
            self._attempts,
            platform.outbox,
            clock,
            self.formats,
            platform.tracer,
        )
        self._attempter.flows = platform.flows
        self._replayer = Replayer(
            connection, self.table, self.service, topics.lifecycle, topics.reader, self._progress, platform.tasks
        )
        self.rewinder = Rewinder(
            connection,
            self.table,
            self.service,
            topics.lifecycle,
            topics.reader,
            self._progress,
            platform.audit,
            clock,
        )
        self._redriver = SubscriptionRedriver(
            connection,
            self.table,
            self.service,
            self._dead_letters,
            self._attempter,
            self._attempts,
            self._progress,
            platform.tasks,
            clock,
            disable=self.service.disable,
        )
        self.dispatcher = self._new_dispatcher(chosen)
        topics.lifecycle.add_dependent(Dependent("subscriptions", self.service.count_of, self.service.remove_of))

    def _new_dispatcher(self, chosen: SubscriptionsSettings) -> Dispatcher:
        platform, topics = self.platform, self.platform.use(TopicsCapability)
        reader = LogReader(platform.connection, MessageCache(chosen.delivery_cache_bytes))
        return Dispatcher(
            self.table,
            topics.lifecycle,
            self.membership,
            Takeover(self._progress, reader, platform.clock, self.membership.name),
            TopicFollowers(platform.connection),
            reader,
            self._attempter,
            self._attempts,
            platform.outbox,
            platform.clock,
            slots=chosen.delivery_slots,
            is_served=platform.identities.is_served,
            disable=self.service.disable,
        )

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (progress_stream(settings.replica_count), attempts_stream(settings.replica_count))

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table, self.members_table)

    def _status_reader(self) -> StatusReader:
        platform, topics = self.platform, self.platform.use(TopicsCapability)
        return StatusReader(
            platform.connection,
            topics.lifecycle,
            topics.reader,
            self._progress,
            self._dead_letters,
            self.membership,
            platform.clock,
            topics.live.connections,
        )

    def live_sections(self) -> Sequence[LiveSection]:
        return (LiveSubscriptions(self.table, self._status_reader()),)

    def routes(self) -> Sequence[Route]:
        platform, topics = self.platform, self.platform.use(TopicsCapability)
        status = self._status_reader()
        tester = DeliveryTester(self._attempter, platform.clock)
        routes = SubscriptionRoutes(self.service, status, self._attempts, tester, self._replayer, self.rewinder, platform.clock)
        dead_letters = SubscriptionDeadLetterRoutes(self.service, self._dead_letters, self._redriver, platform.audit)
        live = LiveSubscriptionRoutes(self.service, self.table, topics.lifecycle, topics.live, self.platform.clock)
        return [*routes.table(), *dead_letters.table(), *live.table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.dispatcher.run, Role.DELIVERY),)

    def task_handlers(self) -> Mapping[str, Handler]:
        return {REPLAY: self._replayer.run, REDRIVE: self._redriver.run}

    async def delete_tenant(self, tenant: str) -> None:
        await self.service.delete_all(tenant)


CAPABILITY = SubscriptionsCapability
