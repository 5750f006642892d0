"""One attempt to deliver a message to an HTTP endpoint."""

import asyncio
from dataclasses import dataclass, field

from postroad.api.subscriptions import BODY_EXCERPT_BYTES
from postroad.kernel.clock import Clock
from postroad.outbound.client import Outbound
from postroad.outbound.rules import OutboundFailed, OutboundRefused
from postroad.subscriptions.endpoint_rules import Outcome, outcome_of, retry_after_ms
from postroad.subscriptions.outgoing import Endpoint, request_headers
from postroad.topics.records import StoredTopicMessage


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What an attempt came to. `error`: why there was no response. `is_ours`: the failure says nothing about the endpoint."""

    outcome: Outcome
    duration_ms: int
    status: int | None = None
    error: str | None = None
    retry_after_ms: int | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: str | None = None
    request_headers: dict[str, str] = field(default_factory=dict)
    is_ours: bool = False

    @property
    def cause(self) -> str:
        """The status or the failure, in a few words."""
        return f"HTTP {self.status}" if self.status is not None else f"no response: {self.error}"

    @property
    def is_timeout(self) -> bool:
        return self.error == "timeout" or self.status == 408


class PushClient:
    def __init__(self, outbound: Outbound, clock: Clock, *, allow_loopback: bool) -> None:
        self._outbound, self._clock, self._allow_loopback = outbound, clock, allow_loopback

    def check(self, url: str) -> None:
        """Raises OutboundRefused if the URL is not allowed."""
        self._outbound.check(url, allow_loopback=self._allow_loopback)

    async def attempt(self, endpoint: Endpoint, message: StoredTopicMessage, number: int) -> AttemptResult:
        """POST the message and judge the response. Does not raise for failures of the endpoint."""
        started = asyncio.get_running_loop().time()
        headers = request_headers(endpoint, message, number, self._clock())

        def elapsed_ms() -> int:
            return int((asyncio.get_running_loop().time() - started) * 1000)

        try:
            response = await self._outbound.post(
                endpoint.tenant,
                endpoint.url,
                message.body,
                headers,
                seconds=endpoint.ack_wait_ms / 1000,
                allow_loopback=self._allow_loopback,
                group=endpoint.subscription,
            )
        except OutboundFailed as failed:
            return AttemptResult(
                Outcome.TRANSIENT,
                elapsed_ms(),
                error=failed.reason,
                request_headers=headers,
                is_ours=failed.reason == "busy",
            )
        except OutboundRefused as refused:  # its addresses may change: not the end of the message
            return AttemptResult(Outcome.TRANSIENT, elapsed_ms(), error=f"not allowed: {refused.reason}", request_headers=headers)
        return AttemptResult(
            outcome_of(response.status),
            elapsed_ms(),
            status=response.status,
            retry_after_ms=retry_after_ms(response.headers, self._clock()),
            response_headers=dict(response.headers),
            response_body=response.body[:BODY_EXCERPT_BYTES].decode("utf-8", "replace"),
            request_headers=headers,
        )
