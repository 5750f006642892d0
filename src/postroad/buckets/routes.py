"""HTTP routes of buckets: list, create, show, change, delete."""

import asyncio
from collections.abc import Sequence

import msgspec

from postroad.api.buckets import (
    BucketInfo,
    BucketInfoPage,
    BucketNotFound,
    BucketQuery,
    BucketSettings,
    BucketSettingsChange,
    NewBucket,
)
from postroad.buckets.lifecycle import BucketLifecycle
from postroad.buckets.mapping import ChangeStreamMappings
from postroad.buckets.records import bucket_of
from postroad.buckets.values import BucketValues
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import (
    AlreadyExists,
    Conflict,
    EngineRefused,
    EngineUnavailable,
    Forbidden,
    OptionIgnored,
)
from postroad.kernel.identity import Scope
from postroad.kernel.json import at_field
from postroad.regions.placement import Placements

_TAG = "Buckets"
_ONE = "/v1/buckets/{bucket}"


class BucketRoutes:
    def __init__(
        self, lifecycle: BucketLifecycle, values: BucketValues, mappings: ChangeStreamMappings, placements: Placements
    ) -> None:
        self._lifecycle, self._values, self._mappings, self._placements = lifecycle, values, mappings, placements

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/buckets",
                self.list_buckets,
                Scope.READ,
                "List buckets",
                _TAG,
                query=BucketQuery,
                response=BucketInfoPage,
                sdk="buckets.list",
                cli=Command(
                    "buckets list",
                    ("name", "settings.history", "settings.ttl_seconds", "settings.max_bytes", "replicas", "created_at"),
                ),
                allows_admin=True,
            ),
            Route(
                "POST",
                "/v1/buckets",
                self.create_bucket,
                Scope.ADMIN,
                "Create a bucket",
                _TAG,
                body=NewBucket,
                response=BucketInfo,
                status=201,
                other_statuses=(200,),
                errors=(AlreadyExists, EngineUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out get their defaults. The status is 200 if the bucket exists with the same "
                "settings.",
                sdk="buckets.create",
                cli=Command("buckets create"),
            ),
            Route(
                "GET",
                _ONE,
                self.get_bucket,
                Scope.READ,
                "Show a bucket and its stats",
                _TAG,
                response=BucketInfo,
                errors=(BucketNotFound, EngineUnavailable),
                sdk="buckets.get",
                cli=Command("buckets show"),
                allows_admin=True,
            ),
            Route(
                "PATCH",
                _ONE,
                self.update_bucket,
                Scope.ADMIN,
                "Change settings of a bucket",
                _TAG,
                body=BucketSettingsChange,
                response=BucketInfo,
                errors=(BucketNotFound, AlreadyExists, EngineUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out keep their values. A lower `history` drops the oldest revisions. "
                "Another `geo` moves the bucket while it is in use: a task `move-placement` shows the progress.",
                sdk="buckets.update",
                cli=Command("buckets update"),
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_bucket,
                Scope.ADMIN,
                "Delete a bucket with its values",
                _TAG,
                status=204,
                errors=(BucketNotFound, Conflict, EngineUnavailable),
                sdk="buckets.delete",
                cli=Command(
                    "buckets delete", confirm="Delete the bucket {bucket} with its values?", done="deleted the bucket {bucket}"
                ),
            ),
        ]

    async def list_buckets(self, request: Request) -> Response:
        query: BucketQuery = request.query
        page = self._lifecycle.page(request.caller, query.limit, query.cursor, query.name)
        return Response(BucketInfoPage(items=[bucket_of(one) for one in page.items], next_cursor=page.next_cursor))

    async def create_bucket(self, request: Request) -> Response:
        new: NewBucket = request.body
        if not request.caller.may_use("bucket", new.name):
            raise Forbidden(f"the key may not use the bucket {new.name!r}")
        fields = msgspec.structs.asdict(new)
        name = fields.pop("name")
        with at_field("$.name"):
            record, is_new = await self._lifecycle.create(request.context, name, BucketSettings(**fields))
        return Response(bucket_of(record), status=201 if is_new else 200)

    async def get_bucket(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["bucket"])
        stats, change_stream, placement = await asyncio.gather(
            self._values.stats(record), self._mappings.status(record), self._placements.status(record.stream)
        )
        return Response(bucket_of(record, stats, change_stream, placement))

    async def update_bucket(self, request: Request) -> Response:
        return Response(bucket_of(await self._lifecycle.update(request.context, request.parameters["bucket"], request.body)))

    async def delete_bucket(self, request: Request) -> Response:
        await self._lifecycle.delete(request.context, request.parameters["bucket"])
        return Response(status=204)
