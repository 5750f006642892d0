"""Stream subscriptions as one thing: the registry, the service, the routes and the delivery, put together."""

from collections.abc import Sequence
from typing import Any, TypedDict

from postroad.crypto.signing import Signer
from postroad.governance.audit import Audit
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.outbound.client import Outbound
from postroad.stream_subscriptions.delivery import Delivery
from postroad.stream_subscriptions.keys import SigningKeys
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.routes import PublicBase, SubscriptionRoutes
from postroad.stream_subscriptions.service import SUBSCRIPTIONS_BUCKET, IsServed, StreamsPort, Subscriptions


class Rights(TypedDict):
    is_served: IsServed
    has_localhost: bool


async def _always(_tenant: str) -> bool:
    return True


class StreamSubscriptions:
    """`deliver` is for the leader of the delivery role. `is_served` says whether a tenant is not disabled; `has_localhost` lets
    webhooks be on this machine, over plain HTTP."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        streams: StreamsPort,
        outbound: Outbound,
        audit: Audit,
        platform_keys: tuple[str, ...],
        clock: Clock,
        public_base: PublicBase,
        *,
        is_served: IsServed | None = None,
        has_localhost: bool = True,
        bucket: str = SUBSCRIPTIONS_BUCKET,
    ) -> None:
        self.table = ReplicatedTable(Bucket(connection, bucket, committers), SubscriptionRecord)
        self._keys = SigningKeys(platform_keys)
        self._public_base = public_base
        rights: Rights = {"is_served": is_served or _always, "has_localhost": has_localhost}
        sealer = Signer(platform_keys, "wake")
        self._subscriptions = Subscriptions(self.table, streams, outbound, sealer, audit, clock, **rights)
        self._delivery = Delivery(self.table, self._subscriptions, streams, outbound, self._keys, clock, **rights)

    @property
    def tables(self) -> tuple[ReplicatedTable[Any], ...]:
        """What every process follows."""
        return (self.table,)

    def routes(self) -> Sequence[Route]:
        return SubscriptionRoutes(self._subscriptions, self._keys, self._public_base).table()

    async def deliver(self) -> None:
        """Wake subscribers, until cancelled."""
        await self._delivery.run()

    async def delete_all(self, tenant: str) -> None:
        """All that a tenant has here; it is being deleted."""
        await self._subscriptions.delete_all(tenant)
