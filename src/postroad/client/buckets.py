"""`client.buckets`: buckets and their values."""

import base64
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from postroad.api.buckets import BucketBatchResult, BucketChange, BucketEntry, BucketEntryPage, BucketValue, WrittenValue
from postroad.client.bucket_watch import BucketWatch
from postroad.client.calls import AsyncNamespace, Call, Content, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import given, hops_header, segment
from postroad.client.generated.buckets import BucketsCalls

_JSON = "application/json"
_BYTES = "application/octet-stream"


def _path(bucket: str, rest: str) -> str:
    return f"/v1/buckets/{segment(bucket)}{rest}"


def _quoted(key: str) -> str:
    """A key in a path. It may have slashes."""
    if key in ("", ".", ".."):
        raise ValueError(f"not a key: {key!r}")
    return quote(key, safe="")


class BucketCalls(BucketsCalls):
    @operation
    def put_value(
        self,
        bucket: str,
        key: str,
        value: Any,
        *,
        content_type: str | None = None,
        ttl_seconds: int | None = None,
        if_revision: int | None = None,
        if_absent: bool = False,
        hops: int | None = None,
    ) -> Call[WrittenValue]:
        """Write a value; return its revision once it is durable. Bytes are stored as they are, other values as JSON.

        With `if_revision` only if the key has this revision, with `if_absent` only if it does not exist; such a call is not
        repeated if the response is lost. `hops`: those of the delivery that this write responds to, so that a loop ends.
        Raises BucketNotFound, RevisionMismatch, TooLarge, LoopDetected.
        """
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
        data = bytes(value) if is_bytes else msgspec.json.encode(value)
        headers = _conditions(if_revision, is_absent=if_absent)
        return Call(
            method="PUT",
            path=_path(bucket, f"/keys/{_quoted(key)}"),
            query={"ttlSeconds": ttl_seconds},
            headers=headers | hops_header(hops),
            body=Content(data, content_type or (_BYTES if is_bytes else _JSON)),
            response=WrittenValue,
            is_repeatable=not headers,
        )

    @operation
    def get_value(self, bucket: str, key: str, *, revision: int | None = None) -> Call[BucketValue]:
        """Read a value, now or at a revision that is still kept. Raises BucketNotFound, BucketKeyNotFound."""
        return Call(method="GET", path=_path(bucket, f"/keys/{_quoted(key)}"), query={"revision": revision}, read=_value)

    @operation
    def delete_value(
        self, bucket: str, key: str, *, if_revision: int | None = None, hops: int | None = None
    ) -> Call[WrittenValue]:
        """Delete a value; a missing one, too. Raises BucketNotFound, RevisionMismatch, LoopDetected."""
        headers = _conditions(if_revision)
        return Call(
            method="DELETE",
            path=_path(bucket, f"/keys/{_quoted(key)}"),
            headers=headers | hops_header(hops),
            response=WrittenValue,
            is_repeatable=not headers,
        )

    @operation
    def write_batch(
        self, bucket: str, writes: Sequence[Mapping[str, Any]], *, hops: int | None = None
    ) -> Call[BucketBatchResult]:
        """Make up to 100 writes, all or none, each a mapping with `key`, `value` and the other fields of the API.

        A `value` of bytes is stored as it is. Not repeated if the response is lost. Raises BucketNotFound, RevisionMismatch.
        """
        body = {"writes": [_write(one) for one in writes]}
        return Call(
            method="POST",
            path=_path(bucket, "/batch"),
            headers=hops_header(hops),
            body=body,
            response=BucketBatchResult,
            is_repeatable=False,
        )

    @pages
    def keys(self, bucket: str, *, prefix: str | None = None, values: bool = False, page_size: int = 100) -> Pages[BucketEntry]:
        """The keys that have a value, in the order of their revisions, with their values if requested."""
        query = {"prefix": prefix, "values": values or None, "limit": page_size}
        return Pages(call=Call(method="GET", path=_path(bucket, "/keys"), query=query, response=BucketEntryPage))

    @pages
    def history(self, bucket: str, key: str, *, page_size: int = 100) -> Pages[BucketEntry]:
        """The kept revisions of a key, deletions included, oldest first."""
        path = _path(bucket, f"/history/{_quoted(key)}")
        return Pages(call=Call(method="GET", path=path, query={"limit": page_size}, response=BucketEntryPage))


def _conditions(revision: int | None, *, is_absent: bool = False) -> dict[str, str]:
    if revision is not None and is_absent:
        raise ValueError("pass `if_revision` or `if_absent`, not both")
    return given(**{"If-Match": None if revision is None else f'"{revision}"', "If-None-Match": "*" if is_absent else None})


def _write(write: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(write)
    if isinstance(fields.get("value"), bytes | bytearray | memoryview):
        fields["valueB64"] = base64.b64encode(fields.pop("value")).decode()
    return fields


def _value(response: httpx.Response) -> BucketValue:
    return BucketValue(
        data=response.content,
        content_type=response.headers.get("content-type", ""),
        revision=int(response.headers["etag"].strip('"')),
    )


def _watch(bucket: str, prefix: str | None, after: str | None) -> BucketWatch:
    return BucketWatch(Call(method="GET", path=_path(bucket, "/watch"), query={"prefix": prefix}), after)


class Buckets(BucketCalls, SyncNamespace):
    def watch(self, bucket: str, *, prefix: str | None = None, after: str | None = None) -> Generator[BucketChange, None, None]:
        """The current values, `ready`, then each change, without end. Reconnects, and resumes after the last change.

        `after` is the `id` of a change, to continue an earlier watch. Raises BucketNotFound and other permanent errors.
        """
        return self._transport.follow(_watch(bucket, prefix, after))


class AsyncBuckets(BucketCalls, AsyncNamespace):
    def watch(self, bucket: str, *, prefix: str | None = None, after: str | None = None) -> AsyncGenerator[BucketChange, None]:
        """Like `Buckets.watch`."""
        return self._transport.follow(_watch(bucket, prefix, after))
