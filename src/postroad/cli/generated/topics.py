"""Commands of `postroad topics`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import json_value, nullable, show_item, unset_if_none
from postroad.cli.topics import topics


@topics.command("put")
def put_topics(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    retention_ms: Annotated[
        int | None, typer.Option("--retention-ms", help="How long a message is kept, at least a second; 0: without limit.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", help="Messages that the topic keeps; 0: no limit.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Bytes that the topic keeps, which are reserved for it; 0: no limit.")
    ] = None,
    on_full: Annotated[
        Literal["drop", "refuse"] | None,
        typer.Option("--on-full", help="At a limit: `drop` the oldest messages, or `refuse` new ones with status 507."),
    ] = None,
    dedupe_window_ms: Annotated[
        int | None,
        typer.Option(
            "--dedupe-window-ms", help="How long an idempotency key is remembered, but not longer than messages are kept."
        ),
    ] = None,
    dedupe_by_content: Annotated[
        bool, typer.Option("--dedupe-by-content", help="A hash of the content is the `dedupeId`, if there is none.")
    ] = False,
    dedupe_scope: Annotated[
        Literal["topic", "group"] | None, typer.Option("--dedupe-scope", help="Where a `dedupeId` is remembered.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", help="Copies of the topic. The installation's default if left out. A single server keeps one."
        ),
    ] = None,
    geo: Annotated[
        str | None, typer.Option("--geo", help="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers.")
    ] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="JSON Schema that payloads must match.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Names and values for people and tools.")] = None,
    sns_attributes: Annotated[
        str | None,
        typer.Option("--sns-attributes", help="Attributes of the SNS API that topics have no setting for. See docs/aws.md."),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create a topic or replace its settings.

    Settings that are left out get their defaults. The status is 201 if the topic is new. Messages stay, unless a
    lower limit or retention drops them.
    """
    with connected() as client:
        show_item(
            client.topics.put(
                topic,
                retention_ms=retention_ms,
                max_messages=max_messages,
                max_bytes=max_bytes,
                on_full=on_full,
                dedupe_window_ms=dedupe_window_ms,
                dedupe_by_content=dedupe_by_content,
                dedupe_scope=dedupe_scope,
                replicas=replicas,
                geo=geo,
                schema=json_value(schema, "schema"),
                tags=json_value(tags, "tags"),
                sns_attributes=json_value(sns_attributes, "sns_attributes"),
            ),
            as_json,
            wide=wide,
        )


@topics.command("update")
def update_topics(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    retention_ms: Annotated[
        str | None,
        typer.Option(
            "--retention-ms", help="How long a message is kept, at least a second; 0: without limit. `none` removes it."
        ),
    ] = None,
    max_messages: Annotated[
        str | None, typer.Option("--max-messages", help="Messages that the topic keeps; 0: no limit. `none` removes it.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Bytes that the topic keeps; 0: no limit. `none` removes it.")
    ] = None,
    on_full: Annotated[
        str | None, typer.Option("--on-full", help="`drop` the oldest or `refuse` new messages. `none` removes it.")
    ] = None,
    dedupe_window_ms: Annotated[
        str | None, typer.Option("--dedupe-window-ms", help="How long an idempotency key is remembered. `none` removes it.")
    ] = None,
    dedupe_by_content: Annotated[
        bool | None,
        typer.Option(
            "--dedupe-by-content/--no-dedupe-by-content", help="A hash of the content is the `dedupeId`. `none` removes it."
        ),
    ] = None,
    dedupe_scope: Annotated[
        str | None, typer.Option("--dedupe-scope", help="Where a `dedupeId` is remembered. `none` removes it.")
    ] = None,
    replicas: Annotated[str | None, typer.Option("--replicas", help="Copies of the topic. `none` removes it.")] = None,
    geo: Annotated[
        str | None,
        typer.Option(
            "--geo", help="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers. `none` removes it."
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="JSON Schema that payloads must match. `none` removes it.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Names and values for people and tools. `none` removes it.")] = None,
    sns_attributes: Annotated[
        str | None, typer.Option("--sns-attributes", help="Attributes of the SNS API. `none` removes it.")
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Change settings of a topic.

    Settings that are left out keep their values. Another `geo` moves the topic while it is in use: a task `move-
    placement` shows the progress.
    """
    with connected() as client:
        show_item(
            client.topics.update(
                topic,
                retention_ms=nullable(retention_ms, int),
                max_messages=nullable(max_messages, int),
                max_bytes=nullable(max_bytes, int),
                on_full=nullable(on_full, str),
                dedupe_window_ms=nullable(dedupe_window_ms, int),
                dedupe_by_content=unset_if_none(dedupe_by_content),
                dedupe_scope=nullable(dedupe_scope, str),
                replicas=nullable(replicas, int),
                geo=nullable(geo, str),
                schema=nullable(schema, lambda text: json_value(text, "schema")),
                tags=nullable(tags, lambda text: json_value(text, "tags")),
                sns_attributes=nullable(sns_attributes, lambda text: json_value(text, "sns_attributes")),
            ),
            as_json,
            wide=wide,
        )


@topics.command("show")
def show_topics(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a topic and its stats."""
    with connected() as client:
        show_item(client.topics.get(topic), as_json, wide=wide)
