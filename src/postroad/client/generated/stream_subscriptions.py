"""Calls of `client.stream_subscriptions`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from postroad.api.stream_subscriptions import Claim, ListedStreamSubscription, ListedStreamSubscriptionPage, StreamSubscription
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment, segments, tenant_prefix


class StreamSubscriptionsCalls:
    @pages
    def list(
        self, *, prefix: str | None = None, project: str | None = None, page_size: int = 100
    ) -> Pages[ListedStreamSubscription]:
        """List subscriptions.

        In the order of their ids. A key that is restricted to some streams sees those whose streams it may use. Raises
        InvalidParameter.
        """
        return Pages(
            call=Call(
                method="GET",
                path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions",
                query={"prefix": prefix, "limit": page_size},
                response=ListedStreamSubscriptionPage,
            )
        )

    @operation
    def get(self, subscription: str, *, project: str | None = None) -> Call[StreamSubscription]:
        """Show a subscription. Raises SubscriptionNotFound, InvalidParameter."""
        return Call(
            method="GET",
            path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}",
            response=StreamSubscription,
        )

    @operation
    def delete(self, subscription: str, *, project: str | None = None) -> Call[None]:
        """Delete a subscription. Does nothing if it does not exist. Raises SubscriptionNotFound, InvalidParameter."""
        return Call(method="DELETE", path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}")

    @operation
    def add_streams(self, subscription: str, streams: Sequence[str], *, project: str | None = None) -> Call[None]:
        """Add streams to a subscription.

        Those already subscribed keep their acknowledged offsets. Raises SubscriptionNotFound, InvalidParameter.
        """
        body = body_of({"streams": streams})
        return Call(
            method="POST",
            path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}/streams",
            body=body,
        )

    @operation
    def remove_stream(self, subscription: str, stream: str, *, project: str | None = None) -> Call[None]:
        """Remove a named stream from a subscription. Raises SubscriptionNotFound, InvalidParameter."""
        return Call(
            method="DELETE",
            path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}/streams/{segments(stream)}",
        )

    @operation
    def claim(self, subscription: str, worker: str, *, project: str | None = None) -> Call[Claim]:
        """Claim the pending data of a subscription.

        If the response is lost, another wake follows when the lease has expired. Raises SubscriptionNotFound,
        InvalidParameter, LeaseHeld, NothingPending.
        """
        body = body_of({"worker": worker})
        return Call(
            method="POST",
            path=f"/v1{tenant_prefix(project)}/stream/__ds/subscriptions/{segment(subscription)}/claim",
            body=body,
            response=Claim,
            is_repeatable=False,
        )


class StreamSubscriptions(StreamSubscriptionsCalls, SyncNamespace):
    pass


class AsyncStreamSubscriptions(StreamSubscriptionsCalls, AsyncNamespace):
    pass
