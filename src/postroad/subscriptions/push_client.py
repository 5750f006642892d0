"""One attempt to deliver a message to an HTTP endpoint."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from postroad.api.subscriptions import BODY_EXCERPT_BYTES
from postroad.kernel.clock import Clock
from postroad.kernel.spans import Span
from postroad.outbound.client import Outbound
from postroad.outbound.http_connection import HttpResult
from postroad.outbound.rules import HeaderLines, OutboundFailed, OutboundRefused
from postroad.subscriptions.endpoint_rules import Outcome, outcome_of, retry_after_ms
from postroad.subscriptions.formats import DeliveryFormat
from postroad.subscriptions.outgoing import Endpoint, OutgoingMessage, attempt_headers
from postroad.subscriptions.records import SubscriptionRecord


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What an attempt came to. `error`: why there was no response. `is_ours`: the failure says nothing about the endpoint.

    `request_headers` are those that the attempt alone had; the others are those of endpoint and message.
    """

    outcome: Outcome
    duration_ms: int
    status: int | None = None
    error: str | None = None
    retry_after_ms: int | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)
    response: bytes = b""
    request_headers: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False

    @property
    def cause(self) -> str:
        """The status or the failure, in a few words."""
        if self.status is None and self.outcome is Outcome.REFUSED:
            return f"not sent: {self.error}"
        return f"HTTP {self.status}" if self.status is not None else f"no response: {self.error}"

    @property
    def is_delivered(self) -> bool:
        return self.outcome is Outcome.DELIVERED

    @property
    def is_timeout(self) -> bool:
        return self.error == "timeout" or self.status == 408

    @property
    def response_body(self) -> str | None:
        """The start of the response's body; None without a response."""
        return None if self.status is None else self.response[:BODY_EXCERPT_BYTES].decode("utf-8", "replace")


class PushClient:
    def __init__(self, outbound: Outbound, clock: Clock, *, allow_loopback: bool) -> None:
        self._outbound, self._clock, self._allow_loopback = outbound, clock, allow_loopback

    def check(self, url: str, *, allow_http: bool = False) -> None:
        """Raises OutboundRefused if the URL is not allowed."""
        self._outbound.check(url, allow_loopback=self._allow_loopback, allow_http=allow_http)

    def attempt(
        self, endpoint: Endpoint, message: OutgoingMessage, number: int, span: Span | None = None
    ) -> Coroutine[Any, Any, AttemptResult]:
        """POST the message and judge the response. Does not raise for failures of the endpoint. `span`: that of the attempt.

        Raises OutboundRefused at once.
        """
        headers = attempt_headers(endpoint, message.stored, number, self._clock(), span)
        lines = HeaderLines(endpoint.header_lines + message.header_lines(endpoint.topic, endpoint.format))
        return self._post(endpoint, message.stored.body, headers, lines, outcome_of)

    async def attempt_formatted(
        self, record: SubscriptionRecord, message: OutgoingMessage, form: DeliveryFormat, span: Span | None = None
    ) -> AttemptResult:
        """Like `attempt`, in the form of another protocol, which has its own headers and schedule, and judges the response.

        Raises NotDeliverable, EngineUnavailable.
        """
        request = form.push_request(record, message)
        endpoint = Endpoint(record.id, record.tenant, record.topic, record.url or "", record.ack_wait_ms)
        headers = {} if span is None else {"traceparent": span.traceparent}
        result = await self._post(endpoint, request.body, headers, request.headers, form.outcome_of, allow_http=True)
        return replace(result, retry_after_ms=None)

    async def _post(
        self,
        endpoint: Endpoint,
        body: bytes,
        headers: Mapping[str, str],
        lines: HeaderLines,
        judge: Callable[[int], Outcome],
        *,
        allow_http: bool = False,
    ) -> AttemptResult:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            response = await self._outbound.post(
                endpoint.tenant,
                endpoint.url,
                body,
                headers,
                seconds=endpoint.ack_wait_ms / 1000,
                allow_loopback=self._allow_loopback,
                allow_http=allow_http,
                group=endpoint.subscription,
                lines=lines,
            )
        except OutboundFailed as failed:
            error, is_ours = failed.reason, failed.reason == "busy"
        except OutboundRefused as refused:  # its addresses may change: not the end of the message
            error, is_ours = f"not allowed: {refused.reason}", False
        else:
            return self._judge(response, judge(response.status), int((loop.time() - started) * 1000), headers)
        duration_ms = int((loop.time() - started) * 1000)
        return AttemptResult(Outcome.TRANSIENT, duration_ms, error=error, request_headers=headers, is_ours=is_ours)

    def _judge(self, response: HttpResult, outcome: Outcome, duration_ms: int, headers: Mapping[str, str]) -> AttemptResult:
        return AttemptResult(
            outcome,
            duration_ms,
            response.status,
            None,
            retry_after_ms(response.headers, self._clock()) if outcome is Outcome.TRANSIENT else None,
            response.headers,
            response.body,
            headers,
        )
