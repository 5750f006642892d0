"""`client.subscriptions`: subscriptions of topics."""

from postroad.client.calls import AsyncNamespace, SyncNamespace, live
from postroad.client.encoding import Moment, moment, segment
from postroad.client.generated.subscriptions import SubscriptionsCalls
from postroad.client.topic_follower import OnNotice, TopicFollower


class SubscriptionCalls(SubscriptionsCalls):
    @live
    def follow(
        self,
        subscription: str,
        *,
        from_sequence: int | None = None,
        from_time: Moment | None = None,
        last_event_id: str | None = None,
        on_notice: OnNotice | None = None,
    ) -> TopicFollower:
        """The messages that a subscription of the type `sse` selects, as they are published; like `topics.follow`.

        Raises SubscriptionNotFound, PreconditionFailed and other permanent errors.
        """
        query = {"fromSequence": from_sequence, "fromTime": moment(from_time)}
        return TopicFollower(f"/v1/subscriptions/{segment(subscription)}/stream", query, last_event_id, on_notice)


class Subscriptions(SubscriptionCalls, SyncNamespace):
    pass


class AsyncSubscriptions(SubscriptionCalls, AsyncNamespace):
    pass
