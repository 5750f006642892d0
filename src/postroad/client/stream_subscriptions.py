"""`client.stream_subscriptions`: wakes by a webhook or a wake stream when durable streams have new data.

`project` is the tenant in the path; default: the caller's own. The calls of a webhook receiver (`callback`, the keys in
`jwks.json`) have no method here.
"""

from collections.abc import Mapping, Sequence

from postroad.api.stream_subscriptions import (
    LEASE_MS_DEFAULT,
    Claim,
    NewStreamSubscription,
    NewWebhook,
    OffsetAck,
    StreamSubscription,
    WakeAcked,
    WakeRequest,
)
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import segment, tenant_prefix
from postroad.client.generated.stream_subscriptions import StreamSubscriptionsCalls


class StreamSubscriptionCalls(StreamSubscriptionsCalls):
    @operation
    def create(
        self,
        subscription: str,
        *,
        pattern: str | None = None,
        streams: Sequence[str] | None = None,
        webhook_url: str | None = None,
        wake_stream: str | None = None,
        lease_ttl_ms: int | None = None,
        description: str | None = None,
        project: str | None = None,
    ) -> Call[StreamSubscription]:
        """Subscribe to the named streams and those that match the pattern. Wakes are sent to `webhook_url`, or appended to
        `wake_stream` for workers to `claim`.

        Does nothing if it exists with the same properties. In a pattern `*` is one segment and `**` any number. Data that a
        stream has at this time counts as acknowledged. Raises AlreadyExists if it exists with other properties,
        InvalidParameter.
        """
        if webhook_url is not None and wake_stream is not None:
            raise ValueError("pass `webhook_url` or `wake_stream`, not both")
        body = NewStreamSubscription(
            type="pull-wake" if webhook_url is None else "webhook",
            pattern=pattern,
            streams=None if streams is None else list(streams),
            webhook=None if webhook_url is None else NewWebhook(webhook_url),
            wake_stream=wake_stream,
            lease_ttl_ms=LEASE_MS_DEFAULT if lease_ttl_ms is None else lease_ttl_ms,
            description=description,
        )
        return Call(method="PUT", path=_path(subscription, project), body=body, response=StreamSubscription)

    @operation
    def ack(
        self,
        subscription: str,
        claim: Claim,
        offsets: Mapping[str, str] | None = None,
        *,
        done: bool = False,
        project: str | None = None,
    ) -> Call[WakeAcked]:
        """Acknowledge the offset of each processed stream. `done` ends the wake; otherwise the lease is renewed.

        Raises WakeFenced if the wake has ended, OffsetRefused.
        """
        acks = [OffsetAck(offset, stream) for stream, offset in (offsets or {}).items()]
        body = WakeRequest(wake_id=claim.wake_id, generation=claim.generation, acks=acks, done=done)
        path = f"{_path(subscription, project)}/ack"
        return Call(method="POST", path=path, body=body, headers=_bearer(claim), response=WakeAcked)

    @operation
    def release(self, subscription: str, claim: Claim, *, project: str | None = None) -> Call[None]:
        """End the wake without acknowledgement, so that another worker can claim at once. Raises WakeFenced."""
        body = WakeRequest(wake_id=claim.wake_id, generation=claim.generation)
        return Call(method="POST", path=f"{_path(subscription, project)}/release", body=body, headers=_bearer(claim))


def _path(subscription: str, project: str | None) -> str:
    return f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}"


def _bearer(claim: Claim) -> dict[str, str]:
    """The token of the wake replaces the key."""
    return {"Authorization": f"Bearer {claim.token}"}


class StreamSubscriptions(StreamSubscriptionCalls, SyncNamespace):
    pass


class AsyncStreamSubscriptions(StreamSubscriptionCalls, AsyncNamespace):
    pass
