"""Wiring of stream subscriptions: webhooks and pull wakes."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.settings import AccessSettings
from postroad.api.stream_subscriptions import (
    LeaseHeld,
    NothingPending,
    OffsetRefused,
    SubscriptionNotFound,
    WakeFenced,
    WebhookRefused,
)
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.platform import BackgroundJob, Capability, Platform, Role
from postroad.stream_subscriptions.delivery import WakeDelivery
from postroad.stream_subscriptions.keys import SigningKeys
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.routes import SubscriptionRoutes
from postroad.stream_subscriptions.service import SUBSCRIPTIONS_BUCKET, StreamSubscriptions
from postroad.streams.capability import StreamsCapability


class StreamSubscriptionsCapability(Capability):
    name = "stream_subscriptions"
    buckets = (SUBSCRIPTIONS_BUCKET,)
    errors = (SubscriptionNotFound, WebhookRefused, WakeFenced, OffsetRefused, LeaseHeld, NothingPending)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {"subscription": {"pattern": "^[A-Za-z0-9_.:~@+=-]{1,128}$"}}

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        streams, outbound, clock = platform.use(StreamsCapability).service, platform.outbound, platform.clock
        is_served = platform.identities.is_enabled
        has_localhost = platform.settings.section(AccessSettings).open
        self.table = platform.table(SUBSCRIPTIONS_BUCKET, SubscriptionRecord)
        self._keys = SigningKeys(platform.platform_keys)
        self._subscriptions = StreamSubscriptions(
            self.table,
            streams,
            outbound,
            platform.signer("wake"),
            platform.audit,
            clock,
            is_served=is_served,
            has_localhost=has_localhost,
            public_url=platform.settings.public_url,
        )
        self.delivery = WakeDelivery(
            self.table,
            self._subscriptions,
            streams,
            outbound,
            self._keys,
            clock,
            is_served=is_served,
            has_localhost=has_localhost,
            tracer=platform.tracer,
        )

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        public_url = self.platform.settings.public_url
        return SubscriptionRoutes(self._subscriptions, self._keys, lambda request: request.base_url(public_url)).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self.delivery.run, Role.DELIVERY, leader_only=True),)

    async def delete_tenant(self, tenant: str) -> None:
        await self._subscriptions.delete_all(tenant)


CAPABILITY = StreamSubscriptionsCapability
