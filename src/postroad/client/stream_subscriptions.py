"""`client.stream_subscriptions`: somebody is woken, by a webhook or through a stream, when durable streams have more to read.

`project` names the tenant in the path; without it, it is the caller's own. What a webhook does with its wake (`callback`, the
keys in `jwks.json`) is between it and the server, and has no method here.
"""

from collections.abc import Mapping, Sequence

from postroad.api.stream_subscriptions import Claim, StreamSubscription, WakeAcked
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import given, segment
from postroad.client.stream_protocol import stream_id_in_url, streams_root


class StreamSubscriptionCalls:
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
        """Follow the named streams and those that fit the pattern. With a `webhook_url` that is called; with a `wake_stream`
        wakes are appended to that, for workers to `claim`.

        If it is there already, just so, nothing is done. In a pattern `*` is one segment and `**` any number. Streams that
        exist are followed from their ends on. Raises AlreadyExists if it is another, InvalidParameter.
        """
        if webhook_url is not None and wake_stream is not None:
            raise ValueError("a subscription wakes by a webhook or by a stream, not by both")
        body = given(
            type="pull-wake" if webhook_url is None else "webhook",
            pattern=pattern,
            streams=None if streams is None else list(streams),
            webhook=None if webhook_url is None else {"url": webhook_url},
            wake_stream=wake_stream,
            lease_ttl_ms=lease_ttl_ms,
            description=description,
        )
        return Call(method="PUT", path=_path(subscription, project), body=body, response=StreamSubscription)

    @operation
    def get(self, subscription: str, *, project: str | None = None) -> Call[StreamSubscription]:
        """What it follows, and how far that was acknowledged. Raises SubscriptionNotFound."""
        return Call(method="GET", path=_path(subscription, project), response=StreamSubscription)

    @operation
    def delete(self, subscription: str, *, project: str | None = None) -> Call[None]:
        """Twice is the same as once."""
        return Call(method="DELETE", path=_path(subscription, project))

    @operation
    def add_streams(self, subscription: str, streams: Sequence[str], *, project: str | None = None) -> Call[None]:
        """Follow these too; those that it follows already stay where they are. Raises SubscriptionNotFound."""
        return Call(method="POST", path=f"{_path(subscription, project)}/streams", body={"streams": list(streams)})

    @operation
    def remove_stream(self, subscription: str, stream: str, *, project: str | None = None) -> Call[None]:
        """No longer follow a stream that was named. Raises SubscriptionNotFound."""
        return Call(method="DELETE", path=f"{_path(subscription, project)}/streams/{stream_id_in_url(stream)}")

    @operation
    def claim(self, subscription: str, worker: str, *, project: str | None = None) -> Call[Claim]:
        """Take up what is to be read; nobody else gets it while the lease lasts. Needs the scope `consume`.

        Not sent again when its answer is lost: the wake comes again when the lease is over. Raises NothingToDo, WakeTaken.
        """
        path = f"{_path(subscription, project)}/claim"
        return Call(method="POST", path=path, body={"worker": worker}, response=Claim, is_repeatable=False)

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
        """Say up to which offset each stream has been handled; with `done`, that this is all. Without, the lease begins anew.

        Raises WakeFenced when another wake has taken its place, OffsetRefused.
        """
        acks = [{"stream": stream, "offset": offset} for stream, offset in (offsets or {}).items()]
        body = {"wake_id": claim.wake_id, "generation": claim.generation, "acks": acks, "done": done}
        path = f"{_path(subscription, project)}/ack"
        return Call(method="POST", path=path, body=body, headers=_bearer(claim), response=WakeAcked)

    @operation
    def release(self, subscription: str, claim: Claim, *, project: str | None = None) -> Call[None]:
        """Give it back unfinished: another worker may claim it at once. Raises WakeFenced."""
        body = {"wake_id": claim.wake_id, "generation": claim.generation}
        return Call(method="POST", path=f"{_path(subscription, project)}/release", body=body, headers=_bearer(claim))


def _path(subscription: str, project: str | None) -> str:
    return f"{streams_root(project)}/__ds/subscriptions/{segment(subscription)}"


def _bearer(claim: Claim) -> dict[str, str]:
    """Who holds a wake shows its token in place of the key."""
    return {"Authorization": f"Bearer {claim.token}"}


class StreamSubscriptions(StreamSubscriptionCalls, SyncNamespace):
    pass


class AsyncStreamSubscriptions(StreamSubscriptionCalls, AsyncNamespace):
    pass
