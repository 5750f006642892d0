"""Calls of `client.subscriptions`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from postroad.api.purging import Purged
from postroad.api.subscription_tests import DeliveryTestResult, FilterTestResult
from postroad.api.subscriptions import (
    Attempts,
    DeliveryType,
    Ordering,
    PushFormat,
    Replay,
    RotatedSecret,
    StartFrom,
    Subscription,
    SubscriptionDeadGroups,
    SubscriptionDeadLetter,
    SubscriptionDeadLetterFilter,
    SubscriptionDeadLetters,
    SubscriptionPage,
    SubscriptionState,
)
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class SubscriptionsCalls:
    @operation
    def create(
        self,
        topic: str,
        delivery_type: DeliveryType | str,
        *,
        name: str | None = None,
        filter: Sequence[str] | str | None = None,
        content_filter: Mapping[str, Any] | None = None,
        url: str | None = None,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        queue: str | None = None,
        start_from: StartFrom | str | None = None,
        start_sequence: int | None = None,
        start_time: Moment | None = None,
        max_deliver: int | None = None,
        retry_delays_ms: Sequence[int] | None = None,
        ack_wait_ms: int | None = None,
        max_per_second: int | None = None,
        max_in_flight: int | None = None,
        ordering: Ordering | str | None = None,
        ordering_key: str | None = None,
        format: PushFormat | str | None = None,
        latest_only: int | None = None,
        dead_letter_queue: str | None = None,
    ) -> Call[Subscription]:
        """Subscribe to a topic.

        A generated `secret` is in this response only. A request with the name and the settings of an existing
        subscription returns that with status 200. Raises TopicNotFound, QueueNotFound, WebhookRefused, FilterInvalid,
        AlreadyExists, InvalidParameter.
        """
        body = body_of(
            {
                "delivery_type": delivery_type,
                "name": name,
                "filter": filter,
                "contentFilter": content_filter,
                "url": url,
                "secret": secret,
                "headers": headers,
                "queue": queue,
                "startFrom": start_from,
                "startSequence": start_sequence,
                "startTime": moment(start_time),
                "maxDeliver": max_deliver,
                "retryDelaysMs": retry_delays_ms,
                "ackWaitMs": ack_wait_ms,
                "maxPerSecond": max_per_second,
                "maxInFlight": max_in_flight,
                "ordering": ordering,
                "orderingKey": ordering_key,
                "format": format,
                "latestOnly": latest_only,
                "deadLetterQueue": dead_letter_queue,
            }
        )
        return Call(
            method="POST",
            path=f"/v1/topics/{segment(topic)}/subscriptions",
            body=body,
            response=Subscription,
            is_repeatable=False,
        )

    @pages
    def list(
        self, *, topic: str | None = None, state: SubscriptionState | str | None = None, page_size: int = 100
    ) -> Pages[Subscription]:
        """List subscriptions."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/subscriptions",
                query={"topic": topic, "state": state, "limit": page_size},
                response=SubscriptionPage,
            )
        )

    @operation
    def get(self, subscription: Subscription | str) -> Call[Subscription]:
        """Show a subscription with its status. Raises SubscriptionNotFound."""
        return Call(method="GET", path=f"/v1/subscriptions/{segment(subscription)}", response=Subscription)

    @operation
    def update(
        self,
        subscription: Subscription | str,
        *,
        filter: Sequence[str] | str | None = None,
        content_filter: Mapping[str, Any] | UnsetType | None = UNSET,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        queue: str | None = None,
        max_deliver: int | None = None,
        retry_delays_ms: Sequence[int] | None = None,
        ack_wait_ms: int | None = None,
        max_per_second: int | UnsetType | None = UNSET,
        max_in_flight: int | None = None,
        ordering: Ordering | str | None = None,
        ordering_key: str | None = None,
        format: PushFormat | str | None = None,
        latest_only: int | UnsetType | None = UNSET,
        dead_letter_queue: str | UnsetType | None = UNSET,
    ) -> Call[Subscription]:
        """Change a subscription.

        Fields that are left out stay. Patterns and filters apply to messages that are read from now on. Raises
        SubscriptionNotFound, QueueNotFound, WebhookRefused, FilterInvalid.
        """
        body = body_of(
            {
                "filter": filter,
                "url": url,
                "headers": headers,
                "queue": queue,
                "maxDeliver": max_deliver,
                "retryDelaysMs": retry_delays_ms,
                "ackWaitMs": ack_wait_ms,
                "maxInFlight": max_in_flight,
                "ordering": ordering,
                "orderingKey": ordering_key,
                "format": format,
            },
            {
                "contentFilter": content_filter,
                "maxPerSecond": max_per_second,
                "latestOnly": latest_only,
                "deadLetterQueue": dead_letter_queue,
            },
        )
        return Call(method="PATCH", path=f"/v1/subscriptions/{segment(subscription)}", body=body, response=Subscription)

    @operation
    def delete(self, subscription: str) -> Call[None]:
        """Delete a subscription. Its progress, attempts and dead letters are deleted, too. Raises SubscriptionNotFound."""
        return Call(method="DELETE", path=f"/v1/subscriptions/{segment(subscription)}")

    @operation
    def rotate_secret(
        self, subscription: str, *, secret: str | None = None, grace_seconds: int | None = None
    ) -> Call[RotatedSecret]:
        """Replace the secret of a subscription.

        During the grace time deliveries are signed with both secrets; `X-MQ-Signature` uses the older one. Raises
        SubscriptionNotFound.
        """
        body = body_of({"secret": secret, "graceSeconds": grace_seconds})
        return Call(
            method="POST",
            path=f"/v1/subscriptions/{segment(subscription)}/secret",
            body=body,
            response=RotatedSecret,
            is_repeatable=False,
        )

    @operation
    def pause(self, subscription: Subscription | str) -> Call[Subscription]:
        """Pause a subscription.

        Messages wait in the topic, as long as its retention allows. Raises SubscriptionNotFound, PreconditionFailed.
        """
        return Call(method="POST", path=f"/v1/subscriptions/{segment(subscription)}/pause", response=Subscription)

    @operation
    def resume(self, subscription: Subscription | str) -> Call[Subscription]:
        """Resume a paused or disabled subscription. Raises SubscriptionNotFound, PreconditionFailed."""
        return Call(method="POST", path=f"/v1/subscriptions/{segment(subscription)}/resume", response=Subscription)

    @operation
    def test(
        self,
        subscription: str,
        *,
        subject: str | None = None,
        payload: Any | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Call[DeliveryTestResult]:
        """Send a test message to the endpoint.

        Returns the complete attempt. The message is not stored, and its sequence is 0. Raises SubscriptionNotFound,
        PreconditionFailed, InvalidParameter.
        """
        body = body_of({"subject": subject, "payload": payload, "headers": headers})
        return Call(
            method="POST",
            path=f"/v1/subscriptions/{segment(subscription)}/test",
            body=body,
            response=DeliveryTestResult,
            is_repeatable=False,
        )

    @operation
    def replay(
        self,
        subscription: str,
        *,
        from_sequence: int | None = None,
        to_sequence: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        rate_per_second: int | None = None,
        dry_run: bool = False,
    ) -> Call[Replay]:
        """Deliver a range of the topic again.

        Starts a task beside the live delivery; see /v1/tasks. The status of a dry run is 200. Raises
        SubscriptionNotFound, TopicNotFound, PreconditionFailed.
        """
        body = body_of(
            {
                "fromSequence": from_sequence,
                "toSequence": to_sequence,
                "fromTime": moment(from_time),
                "toTime": moment(to_time),
                "ratePerSecond": rate_per_second,
                "dryRun": dry_run or None,
            }
        )
        return Call(
            method="POST",
            path=f"/v1/subscriptions/{segment(subscription)}/replay",
            body=body,
            response=Replay,
            is_repeatable=False,
        )

    @operation
    def rewind(
        self,
        subscription: Subscription | str,
        *,
        from_sequence: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
    ) -> Call[Subscription]:
        """Start the delivery again at an earlier message.

        In the order of the topic; then it goes on with new messages, or stops at `toTime`. Messages that are delivered
        again have the header `X-MQ-Replayed`. Raises SubscriptionNotFound, TopicNotFound, PreconditionFailed.
        """
        body = body_of({"fromSequence": from_sequence, "fromTime": moment(from_time), "toTime": moment(to_time)})
        return Call(
            method="POST",
            path=f"/v1/subscriptions/{segment(subscription)}/rewind",
            body=body,
            response=Subscription,
            is_repeatable=False,
        )

    @operation
    def end_rewind(self, subscription: Subscription | str) -> Call[Subscription]:
        """End a rewind.

        The delivery goes on with the messages that were published after the rewind was started. Raises
        SubscriptionNotFound, TopicNotFound.
        """
        return Call(method="DELETE", path=f"/v1/subscriptions/{segment(subscription)}/rewind", response=Subscription)

    @operation
    def attempts(
        self, subscription: str, *, outcome: Literal["delivered", "failed"] | None = None, limit: int | None = None
    ) -> Call[Attempts]:
        """List the last attempts of a subscription.

        The last 100, newest first: every failure, and at most one success per second. Raises SubscriptionNotFound.
        """
        return Call(
            method="GET",
            path=f"/v1/subscriptions/{segment(subscription)}/attempts",
            query={"outcome": outcome, "limit": limit},
            response=Attempts,
        )

    @operation
    def test_filter(
        self,
        subject: str,
        *,
        filter: Sequence[str] | str | None = None,
        content_filter: Mapping[str, Any] | None = None,
        payload: Any | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Call[FilterTestResult]:
        """Test a filter on a message. Raises FilterInvalid, InvalidParameter."""
        body = body_of(
            {"subject": subject, "filter": filter, "contentFilter": content_filter, "payload": payload, "headers": headers}
        )
        return Call(method="POST", path="/v1/subscriptions/filters/test", body=body, response=FilterTestResult)

    @pages
    def dead_letters(
        self,
        subscription: str,
        *,
        reason: str | None = None,
        subject: str | None = None,
        search: str | None = None,
        page_size: int = 100,
    ) -> Pages[SubscriptionDeadLetter]:
        """List the dead letters of a subscription.

        Oldest first. One request searches some thousands; `nextCursor` continues the search. Raises SubscriptionNotFound.
        """
        return Pages(
            call=Call(
                method="GET",
                path=f"/v1/subscriptions/{segment(subscription)}/dlq",
                query={"reason": reason, "subject": subject, "search": search, "limit": page_size},
                response=SubscriptionDeadLetters,
            )
        )

    @operation
    def dead_letter_groups(self, subscription: str) -> Call[SubscriptionDeadGroups]:
        """Count the dead letters of a subscription by reason. Raises SubscriptionNotFound."""
        return Call(method="GET", path=f"/v1/subscriptions/{segment(subscription)}/dlq/groups", response=SubscriptionDeadGroups)

    @operation
    def redrive_dead_letters(
        self,
        subscription: str,
        *,
        filter: SubscriptionDeadLetterFilter | None = None,
        rate_per_second: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Call[Replay]:
        """Deliver dead letters of a subscription again.

        Starts a task that makes one attempt for each; see /v1/tasks. Those that fail again stay. The status of a dry run
        is 200. Raises PreconditionFailed, SubscriptionNotFound.
        """
        body = body_of({"filter": filter, "ratePerSecond": rate_per_second, "limit": limit, "dryRun": dry_run or None})
        return Call(
            method="POST",
            path=f"/v1/subscriptions/{segment(subscription)}/dlq/redrive",
            body=body,
            response=Replay,
            is_repeatable=False,
        )

    @operation
    def purge_dead_letters(
        self, subscription: str, *, filter: SubscriptionDeadLetterFilter | None = None, dry_run: bool = False
    ) -> Call[Purged]:
        """Delete dead letters of a subscription. Raises SubscriptionNotFound."""
        body = body_of({"filter": filter, "dryRun": dry_run or None})
        return Call(method="POST", path=f"/v1/subscriptions/{segment(subscription)}/dlq/purge", body=body, response=Purged)


class Subscriptions(SubscriptionsCalls, SyncNamespace):
    pass


class AsyncSubscriptions(SubscriptionsCalls, AsyncNamespace):
    pass
