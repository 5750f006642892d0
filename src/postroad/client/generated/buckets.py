"""Calls of `client.buckets`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from msgspec import UNSET, UnsetType

from postroad.api.buckets import BucketInfo, BucketInfoPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class BucketsCalls:
    @pages
    def list(self, *, name: str | None = None, page_size: int = 100) -> Pages[BucketInfo]:
        """List buckets."""
        return Pages(
            call=Call(method="GET", path="/v1/buckets", query={"name": name, "limit": page_size}, response=BucketInfoPage)
        )

    @operation
    def create(
        self,
        name: str,
        *,
        history: int | None = None,
        ttl_seconds: int | None = None,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
        replicas: int | None = None,
        geo: str | None = None,
        change_stream_topic: str | None = None,
        change_stream_from: Literal["new", "all"] | None = None,
    ) -> Call[BucketInfo]:
        """Create a bucket.

        Settings that are left out get their defaults. The status is 200 if the bucket exists with the same settings.
        Raises AlreadyExists.
        """
        body = body_of(
            {
                "name": name,
                "history": history,
                "ttlSeconds": ttl_seconds,
                "maxBytes": max_bytes,
                "maxValueBytes": max_value_bytes,
                "replicas": replicas,
                "geo": geo,
                "change_stream_topic": change_stream_topic,
                "change_stream_from": change_stream_from,
            }
        )
        return Call(method="POST", path="/v1/buckets", body=body, response=BucketInfo, is_repeatable=False)

    @operation
    def get(self, bucket: str) -> Call[BucketInfo]:
        """Show a bucket and its stats. Raises BucketNotFound."""
        return Call(method="GET", path=f"/v1/buckets/{segment(bucket)}", response=BucketInfo)

    @operation
    def update(
        self,
        bucket: str,
        *,
        history: int | UnsetType | None = UNSET,
        ttl_seconds: int | UnsetType | None = UNSET,
        max_bytes: int | UnsetType | None = UNSET,
        max_value_bytes: int | UnsetType | None = UNSET,
        replicas: int | UnsetType | None = UNSET,
        geo: str | UnsetType | None = UNSET,
        change_stream_topic: str | UnsetType | None = UNSET,
        change_stream_from: Literal["new", "all"] | UnsetType | None = UNSET,
    ) -> Call[BucketInfo]:
        """Change settings of a bucket.

        Settings that are left out keep their values. A lower `history` drops the oldest revisions. Another `geo` moves
        the bucket while it is in use: a task `move-placement` shows the progress. Raises BucketNotFound, AlreadyExists.
        """
        body = body_of(
            {},
            {
                "history": history,
                "ttlSeconds": ttl_seconds,
                "maxBytes": max_bytes,
                "maxValueBytes": max_value_bytes,
                "replicas": replicas,
                "geo": geo,
                "change_stream_topic": change_stream_topic,
                "change_stream_from": change_stream_from,
            },
        )
        return Call(method="PATCH", path=f"/v1/buckets/{segment(bucket)}", body=body, response=BucketInfo)

    @operation
    def delete(self, bucket: str) -> Call[None]:
        """Delete a bucket with its values. Raises BucketNotFound, Conflict."""
        return Call(method="DELETE", path=f"/v1/buckets/{segment(bucket)}")


class Buckets(BucketsCalls, SyncNamespace):
    pass


class AsyncBuckets(BucketsCalls, AsyncNamespace):
    pass
