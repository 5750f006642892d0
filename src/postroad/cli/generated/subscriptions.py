"""Commands of `postroad subscriptions`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import json_value, nullable, numbers, show_done, show_item, show_list, show_secret
from postroad.cli.subscriptions import subscriptions
from postroad.cli.times import from_now, seconds


@subscriptions.command("create")
def create_subscriptions(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    delivery_type: Annotated[
        Literal["http_push", "queue", "sse", "websocket"],
        typer.Argument(
            help="Where messages go: an HTTP endpoint (`url`), a `queue`, or clients that read it (`sse`, `websocket`)."
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Unique in the topic: a repeated request creates nothing.")] = None,
    filter: Annotated[
        list[str] | None, typer.Option("--filter", help="Subject patterns: `*` is one token, a final `>` one or more.")
    ] = None,
    content_filter: Annotated[
        str | None, typer.Option("--content-filter", help="Conditions on payload and headers, at most 32; see the guide.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Endpoint of `http_push`.")] = None,
    secret: Annotated[
        str | None, typer.Option("--secret", help="Signs the deliveries. Generated and shown once if left out.")
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="Headers of each request, such as an authorization. Not shown again.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue of `queue` deliveries.")] = None,
    start_from: Annotated[
        Literal["new", "all", "sequence", "time"] | None,
        typer.Option("--start-from", help="First message: `new` ones, `all`, or from a `sequence` or `time`."),
    ] = None,
    start_sequence: Annotated[int | None, typer.Option("--start-sequence", help="With `startFrom: sequence`.")] = None,
    start_time: Annotated[
        str | None,
        typer.Option(
            "--start-time", help="With `startFrom: time`. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    max_deliver: Annotated[
        int | None, typer.Option("--max-deliver", help="Attempts before a message becomes a dead letter.")
    ] = None,
    retry_delays_ms: Annotated[
        str | None,
        typer.Option("--retry-delays-ms", help="Delay after each failed attempt; the last one is used for all further."),
    ] = None,
    ack_wait_ms: Annotated[
        int | None, typer.Option("--ack-wait-ms", help="Time for a response before an attempt has failed.")
    ] = None,
    max_per_second: Annotated[
        int | None, typer.Option("--max-per-second", help="Attempts per second. No limit if left out.")
    ] = None,
    max_in_flight: Annotated[int | None, typer.Option("--max-in-flight", help="Attempts at the same time.")] = None,
    ordering: Annotated[
        Literal["none", "key"] | None,
        typer.Option("--ordering", help="`key`: messages of one key are delivered one after the other."),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            "--ordering-key", help="Key of `ordering: key`: `subject`, `group` (the message's `groupId`), or `header:<name>`."
        ),
    ] = None,
    format: Annotated[
        Literal["raw", "cloudevents", "sns"] | None,
        typer.Option("--format", help="`raw`, or `cloudevents` with the attributes of CloudEvents 1.0 in headers."),
    ] = None,
    latest_only: Annotated[
        int | None, typer.Option("--latest-only", help="Of each subject, only the newest message in so many milliseconds.")
    ] = None,
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-queue",
            help="Queue that dead letters are published to, instead of the subscription's own. It must exist.",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Subscribe to a topic.

    A generated `secret` is in this response only. A request with the name and the settings of an existing
    subscription returns that with status 200.
    """
    with connected() as client:
        show_item(
            client.subscriptions.create(
                topic,
                delivery_type,
                name=name,
                filter=filter,
                content_filter=json_value(content_filter, "content_filter"),
                url=url,
                secret=secret,
                headers=json_value(headers, "headers"),
                queue=queue,
                start_from=start_from,
                start_sequence=start_sequence,
                start_time=from_now(start_time) if start_time else None,
                max_deliver=max_deliver,
                retry_delays_ms=numbers(retry_delays_ms),
                ack_wait_ms=ack_wait_ms,
                max_per_second=max_per_second,
                max_in_flight=max_in_flight,
                ordering=ordering,
                ordering_key=ordering_key,
                format=format,
                latest_only=latest_only,
                dead_letter_queue=dead_letter_queue,
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("list")
def list_subscriptions(
    topic: Annotated[str | None, typer.Option("--topic", help="Only subscriptions of this topic.")] = None,
    state: Annotated[
        Literal["pending", "active", "paused", "disabled"] | None,
        typer.Option("--state", help="Only subscriptions in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List subscriptions."""
    with connected() as client:
        show_list(
            list(islice(client.subscriptions.list(topic=topic, state=state, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "name", "topic", "delivery_type", "state", "filter", "url", "queue"),
            wide=wide,
        )


@subscriptions.command("get")
def get_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a subscription with its status."""
    with connected() as client:
        show_item(client.subscriptions.get(subscription), as_json, wide=wide)


@subscriptions.command("update")
def update_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    filter: Annotated[
        list[str] | None, typer.Option("--filter", help="Subject patterns: `*` is one token, a final `>` one or more.")
    ] = None,
    content_filter: Annotated[
        str | None,
        typer.Option("--content-filter", help="Conditions on payload and headers, at most 32; see the guide. `none` removes it."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Endpoint of `http_push`.")] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", help="Headers of each request, such as an authorization. Not shown again.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue of `queue` deliveries.")] = None,
    max_deliver: Annotated[
        int | None, typer.Option("--max-deliver", help="Attempts before a message becomes a dead letter.")
    ] = None,
    retry_delays_ms: Annotated[
        str | None,
        typer.Option("--retry-delays-ms", help="Delay after each failed attempt; the last one is used for all further."),
    ] = None,
    ack_wait_ms: Annotated[
        int | None, typer.Option("--ack-wait-ms", help="Time for a response before an attempt has failed.")
    ] = None,
    max_per_second: Annotated[
        str | None, typer.Option("--max-per-second", help="Attempts per second. No limit if left out. `none` removes it.")
    ] = None,
    max_in_flight: Annotated[int | None, typer.Option("--max-in-flight", help="Attempts at the same time.")] = None,
    ordering: Annotated[
        Literal["none", "key"] | None,
        typer.Option("--ordering", help="`key`: messages of one key are delivered one after the other."),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            "--ordering-key", help="Key of `ordering: key`: `subject`, `group` (the message's `groupId`), or `header:<name>`."
        ),
    ] = None,
    format: Annotated[
        Literal["raw", "cloudevents", "sns"] | None,
        typer.Option("--format", help="`raw`, or `cloudevents` with the attributes of CloudEvents 1.0 in headers."),
    ] = None,
    latest_only: Annotated[
        str | None,
        typer.Option(
            "--latest-only", help="Of each subject, only the newest message in so many milliseconds. `none` removes it."
        ),
    ] = None,
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-queue",
            help="Queue that dead letters are published to, instead of the subscription's own. It must exist. `none` removes it.",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Change a subscription.

    Fields that are left out stay. Patterns and filters apply to messages that are read from now on.
    """
    with connected() as client:
        show_item(
            client.subscriptions.update(
                subscription,
                filter=filter,
                content_filter=nullable(content_filter, lambda text: json_value(text, "content_filter")),
                url=url,
                headers=json_value(headers, "headers"),
                queue=queue,
                max_deliver=max_deliver,
                retry_delays_ms=numbers(retry_delays_ms),
                ack_wait_ms=ack_wait_ms,
                max_per_second=nullable(max_per_second, int),
                max_in_flight=max_in_flight,
                ordering=ordering,
                ordering_key=ordering_key,
                format=format,
                latest_only=nullable(latest_only, int),
                dead_letter_queue=nullable(dead_letter_queue, str),
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("delete")
def delete_subscriptions(subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], yes: Yes = False) -> None:
    """Delete a subscription. Its progress, attempts and dead letters are deleted, too."""
    with connected() as client:
        confirm(f"Delete the subscription {subscription}?", yes)
        client.subscriptions.delete(subscription)
        typer.echo(f"deleted {subscription}")


@subscriptions.command("rotate-secret")
def rotate_secret_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    secret: Annotated[
        str | None, typer.Option("--secret", help="Signs the deliveries. Generated and shown once if left out.")
    ] = None,
    grace_seconds: Annotated[
        str | None, typer.Option("--grace", help="How long the previous secret stays valid. Such as `90s`, `12h`, `7d`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace the secret of a subscription.

    During the grace time deliveries are signed with both secrets; `X-MQ-Signature` uses the older one.
    """
    with connected() as client:
        show_secret(
            client.subscriptions.rotate_secret(subscription, secret=secret, grace_seconds=seconds(grace_seconds)),
            as_json,
            "secret",
        )


@subscriptions.command("pause")
def pause_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], as_json: AsJson = False
) -> None:
    """Pause a subscription. Messages wait in the topic, as long as its retention allows."""
    with connected() as client:
        show_done(client.subscriptions.pause(subscription), as_json, f"paused {subscription}")


@subscriptions.command("resume")
def resume_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], as_json: AsJson = False
) -> None:
    """Resume a paused or disabled subscription."""
    with connected() as client:
        show_done(client.subscriptions.resume(subscription), as_json, f"resumed {subscription}")


@subscriptions.command("test")
def test_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    subject: Annotated[str | None, typer.Option("--subject", help="Subject of the message.")] = None,
    payload: Annotated[str | None, typer.Option("--payload", help="Any JSON.")] = None,
    headers: Annotated[str | None, typer.Option("--headers", help="Headers of the message.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Send a test message to the endpoint.

    Returns the complete attempt. The message is not stored, and its sequence is 0.
    """
    with connected() as client:
        show_item(
            client.subscriptions.test(
                subscription, subject=subject, payload=json_value(payload, "payload"), headers=json_value(headers, "headers")
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("replay")
def replay_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    from_sequence: Annotated[int | None, typer.Option("--from-sequence", help="First sequence.")] = None,
    to_sequence: Annotated[
        int | None, typer.Option("--to-sequence", help="Last sequence. The newest message if left out.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time", help="Messages from this time on. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", help="Messages before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    rate_per_second: Annotated[int | None, typer.Option("--rate-per-second", help="Attempts per second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Deliver a range of the topic again.

    Starts a task beside the live delivery; see /v1/tasks. The status of a dry run is 200.
    """
    with connected() as client:
        show_item(
            client.subscriptions.replay(
                subscription,
                from_sequence=from_sequence,
                to_sequence=to_sequence,
                from_time=from_now(from_time) if from_time else None,
                to_time=from_now(to_time) if to_time else None,
                rate_per_second=rate_per_second,
                dry_run=dry_run,
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("rewind")
def rewind_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    from_sequence: Annotated[int | None, typer.Option("--from-sequence", help="First sequence.")] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time", help="Messages from this time on. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            help="Stop before this time; if left out, go on. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Start the delivery again at an earlier message.

    In the order of the topic; then it goes on with new messages, or stops at `toTime`. Messages that are delivered
    again have the header `X-MQ-Replayed`.
    """
    with connected() as client:
        show_item(
            client.subscriptions.rewind(
                subscription,
                from_sequence=from_sequence,
                from_time=from_now(from_time) if from_time else None,
                to_time=from_now(to_time) if to_time else None,
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("end-rewind")
def end_rewind_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], as_json: AsJson = False
) -> None:
    """End a rewind. The delivery goes on with the messages that were published after the rewind was started."""
    with connected() as client:
        show_done(client.subscriptions.end_rewind(subscription), as_json, f"ended the rewind of {subscription}")


@subscriptions.command("attempts")
def attempts_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    outcome: Annotated[Literal["delivered", "failed"] | None, typer.Option("--outcome", help="Only such attempts.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Maximum number of attempts.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the last attempts of a subscription.

    The last 100, newest first: every failure, and at most one success per second.
    """
    with connected() as client:
        show_item(client.subscriptions.attempts(subscription, outcome=outcome, limit=limit), as_json, wide=wide)


@subscriptions.command("test-filter")
def test_filter_subscriptions(
    subject: Annotated[str, typer.Argument(help="Subject of the message.")],
    filter: Annotated[
        list[str] | None, typer.Option("--filter", help="Subject patterns: `*` is one token, a final `>` one or more.")
    ] = None,
    content_filter: Annotated[
        str | None, typer.Option("--content-filter", help="Conditions on payload and headers, at most 32; see the guide.")
    ] = None,
    payload: Annotated[str | None, typer.Option("--payload", help="Payload of the message: any JSON.")] = None,
    headers: Annotated[str | None, typer.Option("--headers", help="Headers of the message.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Test a filter on a message."""
    with connected() as client:
        show_item(
            client.subscriptions.test_filter(
                subject,
                filter=filter,
                content_filter=json_value(content_filter, "content_filter"),
                payload=json_value(payload, "payload"),
                headers=json_value(headers, "headers"),
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("dlq")
def dlq_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Exactly this reason.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Subjects that match this pattern.")] = None,
    search: Annotated[str | None, typer.Option("--search", help="Text in the body.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the dead letters of a subscription.

    Oldest first. One request searches some thousands; `nextCursor` continues the search.
    """
    with connected() as client:
        show_list(
            list(
                islice(
                    client.subscriptions.dead_letters(
                        subscription, reason=reason, subject=subject, search=search, page_size=min(limit, 1000)
                    ),
                    limit,
                )
            ),
            as_json,
            ("sequence", "subject", "reason", "attempt_count", "dead_at"),
            wide=wide,
        )


@subscriptions.command("dlq-groups")
def dlq_groups_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Count the dead letters of a subscription by reason."""
    with connected() as client:
        show_item(client.subscriptions.dead_letter_groups(subscription), as_json, wide=wide)


@subscriptions.command("redrive")
def redrive_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    filter: Annotated[
        str | None, typer.Option("--filter", help="Conditions on the dead letters, all of which must hold.")
    ] = None,
    rate_per_second: Annotated[int | None, typer.Option("--rate-per-second", help="Attempts per second.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Maximum number of dead letters.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Deliver dead letters of a subscription again.

    Starts a task that makes one attempt for each; see /v1/tasks. Those that fail again stay. The status of a dry run
    is 200.
    """
    with connected() as client:
        show_item(
            client.subscriptions.redrive_dead_letters(
                subscription, filter=json_value(filter, "filter"), rate_per_second=rate_per_second, limit=limit, dry_run=dry_run
            ),
            as_json,
            wide=wide,
        )


@subscriptions.command("purge-dlq")
def purge_dlq_subscriptions(
    subscription: Annotated[str, typer.Argument(help="Id of the subscription.")],
    filter: Annotated[
        str | None, typer.Option("--filter", help="Conditions on the dead letters, all of which must hold.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Delete dead letters of a subscription."""
    with connected() as client:
        confirm(f"Delete dead letters of {subscription}?", yes)
        show_item(
            client.subscriptions.purge_dead_letters(subscription, filter=json_value(filter, "filter"), dry_run=dry_run),
            as_json,
            wide=wide,
        )
