"""Asks HTTP endpoints to confirm their subscriptions, removes those that are not confirmed in two days, and announces the end of
subscriptions.

A request is repeated three times, 20 seconds apart, like a delivery. After a change of the process that does it, requests that
may have been sent already are sent again: a token may be used more than once. The end of a subscription is announced by the
process that served the call, as long as it runs.
"""

import asyncio
import contextlib
import uuid
from dataclasses import dataclass

import structlog

from postroad.api.subscriptions import SnsSubscription, SubscriptionState
from postroad.aws.delivery_policies import DEFAULT_POLICY
from postroad.aws.resource_names import topic_arn
from postroad.aws.sns_envelope import EnvelopeSigner, action_url, arn_of, encode_envelope, signed
from postroad.aws.sns_format import SnsFormat
from postroad.aws.sns_tokens import CONFIRM_SECONDS, SnsTokens
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import PostroadError
from postroad.outbound.client import Outbound
from postroad.outbound.rules import OutboundFailed, OutboundRefused
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.service import Subscriptions

_SECONDS = 15.0
_STEP_SECONDS = 0.5
_AT_ONCE_MAX = 16
_DELAYS_MS = DEFAULT_POLICY.delays_ms

log = structlog.get_logger("postroad.aws")


@dataclass(slots=True)
class _Request:
    """A request to confirm a subscription, of one version of its record. `due_ms` None: no further attempt."""

    version: int
    attempts: int = 0
    due_ms: int | None = 0
    is_in_flight: bool = False


class SnsConfirmations:
    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        outbound: Outbound,
        form: SnsFormat,
        signer: EnvelopeSigner,
        tokens: SnsTokens,
        clock: Clock,
        *,
        allow_loopback: bool,
    ) -> None:
        self._table, self._subscriptions, self._outbound, self._form = table, subscriptions, outbound, form
        self._signer, self._tokens, self._clock, self._allow_loopback = signer, tokens, clock, allow_loopback
        self._requests: dict[str, _Request] = {}  # by key of the pending subscription
        self._wake = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        table.on_change(self._changed)

    def _changed(self, key: str, record: SubscriptionRecord | None) -> None:
        if record is None or record.sns is None or record.state is not SubscriptionState.PENDING:
            self._requests.pop(key, None)
        elif key not in self._requests or self._requests[key].version != record.updated_at_ms:
            self._requests[key] = _Request(record.updated_at_ms)
            self._wake.set()

    async def run(self) -> None:
        """Send requests until cancelled. One process at a time does so."""
        for request in self._requests.values():  # an earlier process may not have sent them
            request.due_ms = 0
        async with asyncio.TaskGroup() as sending:
            while True:
                self._wake.clear()
                for key in self._due():
                    sending.create_task(self._advance(key))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STEP_SECONDS if self._requests else None):
                        await self._wake.wait()

    def _due(self) -> list[str]:
        now, in_flight = self._clock(), sum(one.is_in_flight for one in self._requests.values())
        due = [key for key, one in self._requests.items() if not one.is_in_flight and self._is_due(key, one, now)]
        chosen = due[: max(0, _AT_ONCE_MAX - in_flight)]
        for key in chosen:
            self._requests[key].is_in_flight = True
        return chosen

    def _is_due(self, key: str, request: _Request, now_ms: int) -> bool:
        record = self._table.get(key)
        is_over = record is not None and now_ms > record.updated_at_ms + CONFIRM_SECONDS * 1000
        return is_over or (request.due_ms is not None and request.due_ms <= now_ms)

    async def _advance(self, key: str) -> None:
        request, record = self._requests[key], self._table.get(key)
        try:
            if record is None or record.sns is None or record.state is not SubscriptionState.PENDING:
                self._requests.pop(key, None)
            elif self._clock() > record.updated_at_ms + CONFIRM_SECONDS * 1000:
                await self._subscriptions.expire(record)
            else:
                outcome = await self._send(record, record.sns)
                request.attempts += 1
                may_retry = outcome is Outcome.TRANSIENT and request.attempts <= len(_DELAYS_MS)
                request.due_ms = self._clock() + _DELAYS_MS[request.attempts - 1] if may_retry else None
        except PostroadError as problem:
            log.warning("sns_confirmation_failed", subscription=key, code=problem.code)
            request.due_ms = self._clock() + _DELAYS_MS[0]
        except Exception:  # a bug, which must not end the confirmations of others
            log.exception("sns_confirmation_failed", subscription=key)
            request.due_ms = None
        finally:
            request.is_in_flight = False

    def announce_end(self, record: SubscriptionRecord) -> None:
        """Send an `UnsubscribeConfirmation` to the endpoint of a subscription that was deleted."""
        if record.sns is not None and record.url is not None and record.state is not SubscriptionState.PENDING:
            task = asyncio.get_running_loop().create_task(self._announce_end(record, record.sns))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _announce_end(self, record: SubscriptionRecord, sns: SnsSubscription) -> None:
        arn = topic_arn(sns.region, sns.account, record.topic)
        token = self._tokens.restoration(record.tenant, record.topic, sns)
        text = (
            f"You have chosen to deactivate subscription {arn_of(record, sns)}.\nTo cancel this operation and restore the "
            "subscription, visit the SubscribeURL included in this message."
        )
        for delay_ms in (0, *_DELAYS_MS):
            await asyncio.sleep(delay_ms / 1000)
            try:
                body, headers = self._envelope(record, sns, "UnsubscribeConfirmation", arn, token, text)
                headers["x-amz-sns-subscription-arn"] = arn_of(record, sns)
                if await self._post(record, body, headers) is not Outcome.TRANSIENT:
                    return
            except PostroadError as problem:
                log.warning("sns_end_not_announced", subscription=record.key, code=problem.code)

    async def _send(self, record: SubscriptionRecord, sns: SnsSubscription) -> Outcome:
        return await self._post(record, *self._confirmation(record, sns))

    async def _post(self, record: SubscriptionRecord, body: bytes, headers: dict[str, str]) -> Outcome:
        try:
            response = await self._outbound.post(
                record.tenant,
                record.url or "",
                body,
                headers,
                seconds=_SECONDS,
                allow_loopback=self._allow_loopback,
                allow_http=True,
            )
        except (OutboundFailed, OutboundRefused):
            return Outcome.TRANSIENT
        return self._form.outcome_of(response.status)

    def _confirmation(self, record: SubscriptionRecord, sns: SnsSubscription) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the request. Raises EngineUnavailable while there is no signing key."""
        arn = topic_arn(sns.region, sns.account, record.topic)
        token = self._tokens.confirmation(record.tenant, record.id, record.incarnation)
        text = (
            f"You have chosen to subscribe to the topic {arn}.\nTo confirm the subscription, visit the SubscribeURL included in "
            "this message."
        )
        return self._envelope(record, sns, "SubscriptionConfirmation", arn, token, text)

    def _envelope(
        self, record: SubscriptionRecord, sns: SnsSubscription, kind: str, arn: str, token: str, text: str
    ) -> tuple[bytes, dict[str, str]]:
        envelope = {
            "Type": kind,
            "MessageId": str(uuid.uuid4()),
            "Token": token,
            "TopicArn": arn,
            "Message": text,
            "SubscribeURL": action_url(sns.base_url, "ConfirmSubscription", TopicArn=arn, Token=token),
            "Timestamp": rfc3339(self._clock()),
        }
        headers = {
            "Content-Type": "text/plain; charset=UTF-8",
            "x-amz-sns-message-type": kind,
            "x-amz-sns-message-id": envelope["MessageId"],
            "x-amz-sns-topic-arn": arn,
        }
        version = self._form.signature_version(record)
        return encode_envelope(signed(envelope, self._signer, version, sns.base_url)), headers
