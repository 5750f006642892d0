"""Operations on stream subscriptions. Every change is a compare-and-set of the record, so that any worker can serve any call."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from postroad.api.access import TenantDisabled
from postroad.api.pages import Page
from postroad.api.stream_subscriptions import PendingStream, SubscriptionNotFound, WebhookRefused
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
    Unauthenticated,
)
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.names import unescape
from postroad.outbound.client import Outbound
from postroad.outbound.rules import OutboundRefused
from postroad.stream_subscriptions import rules, wake_state
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord, record_key
from postroad.stream_subscriptions.rules import Config

SUBSCRIPTIONS_BUCKET = "postroad_stream_subscriptions"
PER_TENANT_MAX = 1_000
_TAILS_CONCURRENCY = 32

Change = Callable[[SubscriptionRecord], SubscriptionRecord]
IsServed = Callable[[str], Awaitable[bool]]  # False for a disabled tenant


class StreamsPort(Protocol):
    """Operations on streams that subscriptions need."""

    async def tail(self, tenant: str, path: str) -> str | None:
        """Offset of the end of a stream; None if there is no such stream."""

    async def append_json(self, tenant: str, path: str, element: bytes) -> None:
        """Append one JSON value. Raises PostroadError."""

    async def paths(self, tenant: str) -> list[str]:
        """Paths of all streams of the tenant."""

    def appends(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Path and new end of each stream, on every write from now on. A hint: `tail` has the actual end."""


@dataclass(frozen=True, slots=True)
class WakeRef:
    """The wake that a token holder names in a request. `project` is the tenant in the path, None if the path has none."""

    subscription: str
    token: str
    wake_id: str | None
    generation: int | None
    project: str | None = None


async def read_tails(streams: StreamsPort, tenant: str, paths: Iterable[str]) -> dict[str, str | None]:
    """The ends of several streams, read with limited concurrency."""
    wanted = list(paths)
    tails: dict[str, str | None] = {}
    for start in range(0, len(wanted), _TAILS_CONCURRENCY):
        some = wanted[start : start + _TAILS_CONCURRENCY]
        tails.update(zip(some, await asyncio.gather(*(streams.tail(tenant, path) for path in some)), strict=True))
    return tails


class StreamSubscriptions:
    """`has_localhost`: webhooks on this machine are allowed, for development."""

    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        streams: StreamsPort,
        outbound: Outbound,
        signer: Signer,
        audit: Audit,
        clock: Clock,
        *,
        is_served: IsServed,
        has_localhost: bool,
        public_url: str | None = None,
    ) -> None:
        self._public_url = public_url
        self._table, self._streams, self._outbound, self._signer = table, streams, outbound, signer
        self._audit, self._clock, self._is_served, self._has_localhost = audit, clock, is_served, has_localhost

    async def create(
        self, context: RequestContext, subscription: str, config: Config, root: str
    ) -> tuple[SubscriptionRecord, bool]:
        """Create the subscription, or return it if it exists with the same properties; and whether it is new.

        Data of existing streams counts as acknowledged. Raises AlreadyExists if it exists with other properties, WebhookRefused,
        InvalidParameter, Forbidden, PreconditionFailed.
        """
        caller = context.caller
        key = record_key(caller.tenant, rules.subscription_id(subscription))
        _check_may_use(caller, config.pattern, (*config.streams, *filter(None, [config.wake_stream])))
        self._table.forget(key)  # another worker may have deleted it just now
        existing = await self._table.fetch(key)
        if existing is None:
            record = await self._new_record(caller.tenant, subscription, config, root)
            try:
                async with self._audit.change(context, "stream_subscription.create", subscription, after=_audit_entry(record)):
                    await self._table.create(key, record)
                return record, True
            except Conflict:
                self._table.forget(key)
            existing = await self._table.fetch(key)
        if existing is None or existing.config_hash != config.hash:
            raise AlreadyExists("a subscription with this id exists with other properties")
        return existing, False

    def root_of(self, record: SubscriptionRecord) -> str:
        """Base URL of the streams API for a subscription: at the configured URL of the installation, if there is one."""
        return rules.root_at(self._public_url, record.root)

    async def _new_record(self, tenant: str, subscription: str, config: Config, root: str) -> SubscriptionRecord:
        if config.webhook_url is not None:
            try:
                self._outbound.check(config.webhook_url, allow_loopback=self._has_localhost)
            except OutboundRefused as refused:
                raise WebhookRefused(f"the webhook URL is not allowed: {refused.explanation}") from refused
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
        record = rules.link_named(record, await self._tails_or_zero(tenant, config.streams))
        if config.pattern is None:
            return record
        matching = [path for path in await self._streams.paths(tenant) if rules.matches_pattern(record, path)]
        if len({*record.links, *matching}) > rules.LINKS_MAX:
            raise InvalidParameter(f"the pattern matches more than {rules.LINKS_MAX} streams")
        tails = await read_tails(self._streams, tenant, matching)
        return rules.link_matching(record, {path: tail for path, tail in tails.items() if tail is not None})

    async def find(self, caller: Caller, subscription: str) -> SubscriptionRecord:
        """Raises SubscriptionNotFound, also if the caller may not use all of its streams."""
        record = await self._table.fetch(record_key(caller.tenant, rules.subscription_id(subscription)))
        if record is None or not _may_see(caller, record):
            raise _not_found(subscription)
        return record

    def page(self, caller: Caller, prefix: str, after: str | None, limit: int) -> Page[SubscriptionRecord]:
        """The subscriptions that the caller may see, ordered by id, after the subscription `after`."""
        keys = self._table.keys_under(f"{caller.tenant}.")
        ids = sorted(unescape(key.partition(".")[2]) for key in keys)
        found = (
            record
            for one in ids
            if one.startswith(prefix)
            and (after is None or one > after)
            and (record := self._table.get(record_key(caller.tenant, one))) is not None
            and _may_see(caller, record)
        )
        records = list(itertools.islice(found, limit + 1))
        return Page(items=records[:limit], next_cursor=records[limit - 1].id if len(records) > limit else None)

    async def delete(self, context: RequestContext, subscription: str) -> None:
        """Delete the subscription. Does nothing if it does not exist."""
        try:
            record = await self.find(context.caller, subscription)
        except SubscriptionNotFound:
            return
        async with self._audit.change(context, "stream_subscription.delete", subscription, before=_audit_entry(record)):
            await self._table.delete(record.key)

    async def add_streams(self, context: RequestContext, subscription: str, paths: Sequence[str]) -> None:
        """Add named streams; their data so far counts as acknowledged. Raises SubscriptionNotFound, InvalidParameter,
        Forbidden."""
        record = await self.find(context.caller, subscription)
        _check_may_use(context.caller, None, paths)
        acked = await self._tails_or_zero(context.tenant, paths)
        rules.link_named(record, acked)  # raises before the audit entry is written
        async with self._audit.change(context, "stream_subscription.add_streams", subscription, after={"streams": list(paths)}):
            await self._change(context.tenant, subscription, lambda one: rules.link_named(one, acked))

    async def remove_stream(self, context: RequestContext, subscription: str, path: str) -> None:
        """Remove a named stream. Raises SubscriptionNotFound."""
        record = await self.find(context.caller, subscription)
        async with self._audit.change(context, "stream_subscription.remove_stream", subscription, before={"stream": path}):
            await self._change(record.tenant, subscription, lambda one: rules.unlink_named(one, path))

    async def claim(
        self, context: RequestContext, subscription: str, worker: str
    ) -> tuple[SubscriptionRecord, list[PendingStream]]:
        """Lease the pending data to a worker. Raises SubscriptionNotFound, InvalidParameter, LeaseHeld, NothingPending."""
        if not worker or len(worker) > rules.WORKER_CHARS_MAX:
            raise InvalidParameter(f"worker has 1 to {rules.WORKER_CHARS_MAX} characters")
        record = await self.find(context.caller, subscription)
        _check_pull(record)
        tails = await self._tails_or_zero(record.tenant, record.links)
        wake_id = new_wake_id()
        claimed = await self._change(
            context.tenant, subscription, lambda one: wake_state.claim(one, worker, tails, self._clock(), wake_id)
        )
        return claimed, rules.pending_streams(claimed, tails)

    def token(self, record: SubscriptionRecord) -> str:
        """Token of the current wake, which authorises its holder."""
        wake_id = record.wake.id if record.wake else ""
        return self._signer.sign(b"wake", msgspec.json.encode([record.tenant, record.id, record.generation, wake_id]))

    async def acknowledge(self, wake: WakeRef, acks: Sequence[tuple[str, str]], *, is_done: bool, is_pull: bool) -> bool:
        """Acknowledge offsets. `is_done` ends the wake, otherwise the lease is renewed. Returns whether a done wake leaves data
        pending.

        Raises Unauthenticated, SubscriptionNotFound, WakeFenced, OffsetRefused, InvalidParameter.
        """
        tenant = await self._verify_token(wake)
        record = await self._check_current(tenant, wake)
        if is_pull:
            _check_pull(record)
        elif record.kind is not Kind.WEBHOOK:
            raise InvalidParameter("the subscription has no webhook; use `ack`")
        paths = record.links if is_done else [path for path, _offset in acks if path in record.links]
        tails = await self._tails_or_zero(tenant, paths)

        def change(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake.wake_id, wake.generation, self._clock())
            acknowledged = rules.acknowledge(one, acks, tails)
            return wake_state.end_wake(acknowledged) if is_done else wake_state.renew_lease(acknowledged, self._clock())

        changed = await self._change(tenant, wake.subscription, change)
        return is_done and rules.first_pending(changed, tails) is not None

    async def release(self, wake: WakeRef) -> None:
        """End a claimed wake without acknowledgement. Raises Unauthenticated, SubscriptionNotFound, WakeFenced,
        InvalidParameter."""
        tenant = await self._verify_token(wake)
        _check_pull(await self._check_current(tenant, wake))

        def change(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake.wake_id, wake.generation, self._clock())
            return wake_state.end_wake(one)

        await self._change(tenant, wake.subscription, change)

    async def delete_all(self, tenant: str) -> None:
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)

    async def _verify_token(self, wake: WakeRef) -> str:
        """The tenant of the token. Raises Unauthenticated, TenantDisabled, and WakeFenced for a valid token of another wake."""
        tenant, subscription, generation, wake_id = self._parse_token(wake.token)
        if subscription != wake.subscription or wake.project not in (None, tenant):
            raise Unauthenticated("the token is for another subscription")
        if not await self._is_served(tenant):
            raise TenantDisabled(f"the tenant {tenant!r} is disabled")
        if (generation, wake_id) != (wake.generation, wake.wake_id):
            raise wake_state.fenced()
        return tenant

    def token_tenant(self, token: str) -> str:
        """The tenant of a token, which may have ended. Raises Unauthenticated."""
        return self._parse_token(token)[0]

    def _parse_token(self, token: str) -> tuple[str, str, int, str]:
        try:
            return msgspec.json.decode(self._signer.verify(b"wake", token), type=tuple[str, str, int, str])
        except (SignatureInvalid, msgspec.DecodeError) as exc:
            raise Unauthenticated("the token is invalid") from exc

    async def _check_current(self, tenant: str, wake: WakeRef) -> SubscriptionRecord:
        """The record, read from JetStream if this worker's copy is outdated. Raises SubscriptionNotFound, WakeFenced."""

        def check(one: SubscriptionRecord) -> SubscriptionRecord:
            wake_state.check_wake(one, wake.wake_id, wake.generation, self._clock())
            return one

        return await self._change(tenant, wake.subscription, check)

    async def _change(self, tenant: str, subscription: str, change: Change) -> SubscriptionRecord:
        """Apply a change to the record. If it is refused, the local copy may be outdated, so it is applied again to the newest
        record. Raises SubscriptionNotFound, and the errors of `change`."""
        key = record_key(tenant, subscription)
        try:
            changed = await self._table.change(key, change)
        except ConflictError:
            self._table.forget(key)
            changed = await self._table.change(key, change)
        if changed is None:
            raise _not_found(subscription)
        return changed[1]

    async def _tails_or_zero(self, tenant: str, paths: Iterable[str]) -> dict[str, str]:
        tails = await read_tails(self._streams, tenant, paths)
        return {path: tail or rules.ZERO for path, tail in tails.items()}


def new_wake_id() -> str:
    return f"w_{new_id().replace('-', '')}"


def _not_found(subscription: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f"there is no subscription {subscription[:128]!r}")


def _check_pull(record: SubscriptionRecord) -> None:
    if record.kind is not Kind.PULL_WAKE:
        raise InvalidParameter("only pull-wake subscriptions can be claimed, acknowledged and released")


def _is_restricted(caller: Caller) -> bool:
    return caller.only_stream is not None or "stream" in (caller.allowed or {})


def _check_may_use(caller: Caller, pattern: str | None, paths: Iterable[str]) -> None:
    """Raises Forbidden. A pattern may match other streams later, so a restricted caller must name its streams."""
    if pattern is not None and _is_restricted(caller):
        raise Forbidden("the key is restricted to some streams and cannot subscribe to a pattern; name the streams")
    refused = next((path for path in paths if not caller.may_use("stream", path)), None)
    if refused is not None:
        raise Forbidden(f"the key may not use the stream {refused[:100]!r}")


def _may_see(caller: Caller, record: SubscriptionRecord) -> bool:
    if not _is_restricted(caller):
        return True
    paths = (*record.links, *filter(None, [record.wake_stream]))
    return record.pattern is None and all(caller.may_use("stream", path) for path in paths)


def _audit_entry(record: SubscriptionRecord) -> dict[str, object]:
    return {
        "type": record.kind.value,
        "pattern": record.pattern,
        "streams": [path for path, link in record.links.items() if link.is_explicit],
        "webhookUrl": record.webhook_url,
        "wakeStream": record.wake_stream,
    }
