"""Calls of `client.topics`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from postroad.api.purging import Purged
from postroad.api.topics import Topic, TopicPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class TopicsCalls:
    @pages
    def list(self, *, name: str | None = None, stats: bool = False, page_size: int = 100) -> Pages[Topic]:
        """List topics."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/topics",
                query={"name": name, "stats": stats or None, "limit": page_size},
                response=TopicPage,
            )
        )

    @operation
    def put(
        self,
        topic: Topic | str,
        *,
        retention_ms: int | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        on_full: Literal["drop", "refuse"] | None = None,
        dedupe_window_ms: int | None = None,
        dedupe_by_content: bool = False,
        dedupe_scope: Literal["topic", "group"] | None = None,
        replicas: int | None = None,
        geo: str | None = None,
        schema: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        sns_attributes: Mapping[str, str] | None = None,
    ) -> Call[Topic]:
        """Create a topic or replace its settings.

        Settings that are left out get their defaults. The status is 201 if the topic is new. Messages stay, unless a
        lower limit or retention drops them.
        """
        body = body_of(
            {
                "retentionMs": retention_ms,
                "maxMessages": max_messages,
                "maxBytes": max_bytes,
                "onFull": on_full,
                "dedupeWindowMs": dedupe_window_ms,
                "dedupeByContent": dedupe_by_content or None,
                "dedupeScope": dedupe_scope,
                "replicas": replicas,
                "geo": geo,
                "schema": schema,
                "tags": tags,
                "snsAttributes": sns_attributes,
            }
        )
        return Call(method="PUT", path=f"/v1/topics/{segment(topic)}", body=body, response=Topic)

    @operation
    def update(
        self,
        topic: Topic | str,
        *,
        retention_ms: int | UnsetType | None = UNSET,
        max_messages: int | UnsetType | None = UNSET,
        max_bytes: int | UnsetType | None = UNSET,
        on_full: Literal["drop", "refuse"] | UnsetType | None = UNSET,
        dedupe_window_ms: int | UnsetType | None = UNSET,
        dedupe_by_content: bool | UnsetType | None = UNSET,
        dedupe_scope: Literal["topic", "group"] | UnsetType | None = UNSET,
        replicas: int | UnsetType | None = UNSET,
        geo: str | UnsetType | None = UNSET,
        schema: Mapping[str, Any] | UnsetType | None = UNSET,
        tags: Mapping[str, str] | UnsetType | None = UNSET,
        sns_attributes: Mapping[str, str] | UnsetType | None = UNSET,
    ) -> Call[Topic]:
        """Change settings of a topic.

        Settings that are left out keep their values. Another `geo` moves the topic while it is in use: a task `move-
        placement` shows the progress. Raises TopicNotFound.
        """
        body = body_of(
            {},
            {
                "retentionMs": retention_ms,
                "maxMessages": max_messages,
                "maxBytes": max_bytes,
                "onFull": on_full,
                "dedupeWindowMs": dedupe_window_ms,
                "dedupeByContent": dedupe_by_content,
                "dedupeScope": dedupe_scope,
                "replicas": replicas,
                "geo": geo,
                "schema": schema,
                "tags": tags,
                "snsAttributes": sns_attributes,
            },
        )
        return Call(method="PATCH", path=f"/v1/topics/{segment(topic)}", body=body, response=Topic)

    @operation
    def get(self, topic: Topic | str) -> Call[Topic]:
        """Show a topic and its stats. Raises TopicNotFound."""
        return Call(method="GET", path=f"/v1/topics/{segment(topic)}", response=Topic)

    @operation
    def delete(self, topic: str, *, cascade: bool = False) -> Call[None]:
        """Delete a topic with its messages. Raises TopicNotFound, TopicInUse, Conflict."""
        return Call(method="DELETE", path=f"/v1/topics/{segment(topic)}", query={"cascade": cascade or None})

    @operation
    def purge(
        self, topic: str, *, subject: str | None = None, to_sequence: int | None = None, dry_run: bool = False
    ) -> Call[Purged]:
        """Delete messages of a topic.

        All messages, or those whose subject matches a pattern, up to a sequence if one is given. The sequences of the
        other messages stay. Raises TopicNotFound.
        """
        body = body_of({"subject": subject, "toSequence": to_sequence, "dryRun": dry_run or None})
        return Call(method="POST", path=f"/v1/topics/{segment(topic)}/purge", body=body, response=Purged)


class Topics(TopicsCalls, SyncNamespace):
    pass


class AsyncTopics(TopicsCalls, AsyncNamespace):
    pass
