"""What a user can do with subscriptions. Every change is a compare-and-set of the record, so any worker can serve any call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from postroad.api.access import TenantDisabled
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import (
    AlreadyExists,
    Conflict,
    ConflictError,
    Forbidden,
    InvalidParameter,
    PreconditionFailed,
    SubscriptionNotFound,
    Unauthenticated,
    WebhookRefused,
)
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.outbound.client import Outbound
from postroad.outbound.rules import OutboundRefused
from postroad.stream_subscriptions import rules, wake_state
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord, record_key
from postroad.stream_subscriptions.rules import Config, StreamState

SUBSCRIPTIONS_BUCKET = "postroad_stream_subscriptions"
PER_TENANT_MAX = 1_000
_TAILS_AT_ONCE = 32

Make = Callable[[SubscriptionRecord], SubscriptionRecord]
IsServed = Callable[[str], Awaitable[bool]]  # whether a tenant is, or was disabled


class StreamsPort(Protocol):
    """What subscriptions need of the streams."""

    async def tail(self, tenant: str, path: str) -> str | None:
        """Where the stream ends; None if there is no such stream."""

    async def append_json(self, tenant: str, path: str, element: bytes) -> None:
        """One JSON value at the end of the stream. Raises PostroadError."""

    async def paths(self, tenant: str) -> list[str]:
        """Every stream that there is."""

    def appended(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """The path of each stream that something was written to from now on, for ever. A hint: ask `tail`."""


async def tails_of(streams: StreamsPort, tenant: str, paths: Iterable[str]) -> dict[str, str | None]:
    """Where each of them ends, a few at a time."""
    wanted = list(paths)
    found: dict[str, str | None] = {}
    for start in range(0, len(wanted), _TAILS_AT_ONCE):
        some = wanted[start : start + _TAILS_AT_ONCE]
        found.update(zip(some, await asyncio.gather(*(streams.tail(tenant, path) for path in some)), strict=True))
    return found


class Subscriptions:
    """`has_localhost`: webhooks on this machine are allowed, as the protocol has it for development."""

    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        streams: StreamsPort,
        outbound: Outbound,
        sealer: Signer,
        audit: Audit,
        clock: Clock,
        *,
        is_served: IsServed,
        has_localhost: bool,
    ) -> None:
        self._table, self._streams, self._outbound, self._sealer = table, streams, outbound, sealer
        self._audit, self._clock, self._is_served, self._has_localhost = audit, clock, is_served, has_localhost

    async def create(
        self, context: RequestContext, subscription: str, config: Config, root: str
    ) -> tuple[SubscriptionRecord, bool]:
        """The subscription, and whether it is new. Streams that exist are followed from their ends on.

        Raises AlreadyExists if there is one that wants something else, WebhookRefused, InvalidParameter, Forbidden, NotNow.
        """
        caller = context.caller
        key = record_key(caller.tenant, rules.subscription_id(subscription))
        _check_may(caller, config.pattern, (*config.streams, *filter(None, [config.wake_stream])))
        self._table.forget(key)  # it may just have been deleted by way of another worker
        known = await self._table.fetch(key)
        if known is None:
            record = await self._new(caller.tenant, subscription, config, root)
            try:
                async with self._audit.change(context, "stream_subscription.create", subscription, after=_told(record)):
                    await self._table.create(key, record)
                return record, True
            except Conflict:
                self._table.forget(key)
            known = await self._table.fetch(key)
        if known is None or known.config_hash != config.hash:
            raise AlreadyExists("there is a subscription with this id that wants something else")
        return known, False

    async def _new(self, tenant: str, subscription: str, config: Config, root: str) -> SubscriptionRecord:
        if config.webhook_url is not None:
            try:
                self._outbound.check(config.webhook_url, allow_loopback=self._has_localhost)
            except OutboundRefused as refused:
                raise WebhookRefused(f"the webhook's URL cannot be used, because of: {refused.reason}") from refused
        if self._table.count_under(f"{tenant}.") >= PER_TENANT_MAX:
            raise PreconditionFailed(f"a tenant has at most {PER_TENANT_MAX} subscriptions")
        record = SubscriptionRecord(
            id=subscription,
            tenant=tenant,
            kind=config.kind,
            pattern=config.pattern,
            webhook_url=config.webhook_url,
            wake_stream=config.wake_stream,
            lease_ttl_ms=config.lease_ttl_ms,
            description=config.description,
            config_hash=config.hash,
            root=root,
            created_at_ms=self._clock(),
        )
        named = await tails_of(self._streams, tenant, config.streams)
        record = rules.with_named(record, {path: tail or rules.ZERO for path, tail in named.items()})
        if config.pattern is None:
            return record
        matching = [path for path in await self._streams.paths(tenant) if rules.follows(record, path)]
        if len({*record.links, *matching}) > rules.LINKS_MAX:
            raise InvalidParameter(f"the pattern matches more than {rules.LINKS_MAX} streams")
        found = await tails_of(self._streams, tenant, matching)
        return rules.with_globs(record, {path: tail for path, tail in found.items() if tail is not None})

    async def find(self, caller: Caller, subscription: str) -> SubscriptionRecord:
        """Raises SubscriptionNotFound, also for one whose streams the caller is kept from."""
        record = await self._table.fetch(record_key(caller.tenant, rules.subscription_id(subscription)))
        if record is None or not _may_see(caller, record):
            raise _not_found(subscription)
        return record

    async def delete(self, context: RequestContext, subscription: str) -> None:
        """What is not there is deleted already."""
        try:
            record = await self.find(context.caller, subscription)
        except SubscriptionNotFound:
            return
        async with self._audit.change(context, "stream_subscription.delete", subscription, before=_told(record)):
            await self._table.delete(record.key)

    async def add_streams(self, context: RequestContext, subscription: str, paths: Sequence[str]) -> None:
        """Follow these too, from their ends on. Raises SubscriptionNotFound, InvalidParameter, Forbidden."""
        caller = context.caller
        record = await self.find(caller, subscription)
        _check_may(caller, None, paths)
        tails = await tails_of(self._streams, caller.tenant, paths)
        acked = {path: tail or rules.ZERO for path, tail in tails.items()}
        rules.with_named(record, acked)  # before it is written down as done
        async with self._audit.change(context, "stream_subscription.add_streams", subscription, after={"streams": list(paths)}):
            await self._change(caller.tenant, subscription, lambda one: rules.with_named(one, acked))

    async def remove_stream(self, context: RequestContext, subscription: str, path: str) -> None:
        """No longer because of its name. Raises SubscriptionNotFound."""
        record = await self.find(context.caller, subscription)
        async with self._audit.change(context, "stream_subscription.remove_stream", subscription, before={"stream": path}):
            await self._change(record.tenant, subscription, lambda one: rules.without_named(one, path))

    async def claim(self, caller: Caller, subscription: str, worker: str) -> tuple[SubscriptionRecord, list[StreamState]]:
        """Lease the work to a worker. Raises SubscriptionNotFound, InvalidParameter, WakeTaken, NothingToDo."""
        if not worker or len(worker) > rules.WORKER_CHARS_MAX:
            raise InvalidParameter(f"worker is a text of 1 to {rules.WORKER_CHARS_MAX} characters")
        record = await self.find(caller, subscription)
        _check_pull(record)
        tails = await self._known_tails(record)
        wake_id = new_wake_id()
        claimed = await self._change(
            caller.tenant, subscription, lambda one: wake_state.claimed(one, worker, tails, self._clock(), wake_id)
        )
        return claimed, rules.stream_states(claimed, tails)

    def token(self, record: SubscriptionRecord) -> str:
        """What proves that its bearer was given the wake that is under way."""
        wake_id = record.wake.id if record.wake else ""
        return self._sealer.sign(b"wake", msgspec.json.encode([record.tenant, record.id, record.generation, wake_id]))

    async def acknowledge(
        self,
        subscription: str,
        token: str,
        *,
        wake_id: str | None,
        generation: int | None,
        acks: Sequence[tuple[str, str]],
        is_done: bool,
        is_pull: bool,
        project: str | None = None,
    ) -> bool:
        """What was read, and with `is_done` that this was all; otherwise the lease begins anew. Whether there is more to do.

        Raises Unauthenticated, SubscriptionNotFound, WakeFenced, OffsetRefused, InvalidParameter.
        """
        tenant = await self._opened(subscription, token, wake_id, generation, project)
        record = await self._under_way(tenant, subscription, wake_id, generation)
        if is_pull:
            _check_pull(record)
        elif record.kind is not Kind.WEBHOOK:
            raise InvalidParameter("this subscription has no webhook: use ack")
        paths = record.links if is_done else [path for path, _offset in acks if path in record.links]
        found = await tails_of(self._streams, tenant, paths)
        tails = {path: tail or rules.ZERO for path, tail in found.items()}

        def make(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake_id, generation, self._clock())
            read = rules.acknowledged(one, acks, tails)
            return wake_state.ended(read) if is_done else wake_state.extended(read, self._clock())

        changed = await self._change(tenant, subscription, make)
        return is_done and rules.first_pending(changed, tails) is not None

    async def release(
        self, subscription: str, token: str, *, wake_id: str | None, generation: int | None, project: str | None = None
    ) -> None:
        """Give the work back, for somebody else. Raises Unauthenticated, SubscriptionNotFound, WakeFenced."""
        tenant = await self._opened(subscription, token, wake_id, generation, project)
        _check_pull(await self._under_way(tenant, subscription, wake_id, generation))

        def make(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake_id, generation, self._clock())
            return wake_state.ended(one)

        await self._change(tenant, subscription, make)

    async def delete_all(self, tenant: str) -> None:
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)

    async def _opened(
        self, subscription: str, token: str, wake_id: str | None, generation: int | None, project: str | None
    ) -> str:
        """The tenant that the token was made for. Raises Unauthenticated, TenantDisabled; WakeFenced is for those who had a
        right once."""
        try:
            tenant, named, of_generation, of_wake = msgspec.json.decode(
                self._sealer.verify(b"wake", token), type=tuple[str, str, int, str]
            )
        except (SignatureInvalid, msgspec.DecodeError) as exc:
            raise Unauthenticated("the token is not one of ours") from exc
        if named != subscription or project not in (None, tenant):
            raise Unauthenticated("the token is for another subscription")
        if not await self._is_served(tenant):
            raise TenantDisabled(f"the tenant {tenant!r} is disabled")
        if (of_generation, of_wake) != (generation, wake_id):
            raise wake_state.over()
        return tenant

    async def _under_way(self, tenant: str, subscription: str, wake_id: str | None, generation: int | None) -> SubscriptionRecord:
        """The record, if this wake is under way. What this worker has not heard of yet, it asks for."""

        def make(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake_id, generation, self._clock())
            return one

        return await self._change(tenant, subscription, make)

    async def _change(self, tenant: str, subscription: str, make: Make) -> SubscriptionRecord:
        """What `make` makes of the record. If that is refused, it may be by an old record: then the engine is asked for the
        newest. Raises SubscriptionNotFound, and what `make` does."""
        key = record_key(tenant, subscription)
        try:
            changed = await self._table.change(key, make)
        except ConflictError:
            self._table.forget(key)
            changed = await self._table.change(key, make)
        if changed is None:
            raise _not_found(subscription)
        return changed[1]

    async def _known_tails(self, record: SubscriptionRecord) -> dict[str, str]:
        found = await tails_of(self._streams, record.tenant, record.links)
        return {path: tail or rules.ZERO for path, tail in found.items()}


def new_wake_id() -> str:
    return f"w_{new_id().replace('-', '')}"


def _not_found(subscription: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f"there is no subscription {subscription[:128]!r}")


def _check_pull(record: SubscriptionRecord) -> None:
    if record.kind is not Kind.PULL_WAKE:
        raise InvalidParameter("only a pull-wake subscription is claimed, acknowledged and released")


def _is_narrow(caller: Caller) -> bool:
    return caller.only_stream is not None or "stream" in (caller.allowed or {})


def _check_may(caller: Caller, pattern: str | None, paths: Iterable[str]) -> None:
    """Raises Forbidden. A pattern may come to match what the caller is kept from, so who is kept from anything names streams."""
    if pattern is not None and _is_narrow(caller):
        raise Forbidden("the key is kept to some streams, so it cannot follow a pattern: name the streams")
    refused = next((path for path in paths if not caller.may_use("stream", path)), None)
    if refused is not None:
        raise Forbidden(f"the key may not use the stream {refused[:100]!r}")


def _may_see(caller: Caller, record: SubscriptionRecord) -> bool:
    if not _is_narrow(caller):
        return True
    paths = (*record.links, *filter(None, [record.wake_stream]))
    return record.pattern is None and all(caller.may_use("stream", path) for path in paths)


def _told(record: SubscriptionRecord) -> dict[str, object]:
    """For the audit log."""
    return {
        "type": record.kind.value,
        "pattern": record.pattern,
        "streams": [path for path, link in record.links.items() if link.is_explicit],
        "webhookUrl": record.webhook_url,
        "wakeStream": record.wake_stream,
    }
