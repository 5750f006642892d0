"""Calls of `client.streams`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.streams import ListedStream, ListedStreamPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import segments, tenant_prefix


class StreamsCalls:
    @operation
    def delete(self, stream: str, *, project: str | None = None) -> Call[None]:
        """Delete a stream. Its forks keep the data they share with it. Raises StreamNotFound, StreamGone."""
        return Call(method="DELETE", path=f"/v1{tenant_prefix(project)}/stream/{segments(stream)}")

    @pages
    def list(self, *, prefix: str | None = None, project: str | None = None, page_size: int = 100) -> Pages[ListedStream]:
        """List streams.

        In the order of their ids. A key that is restricted to some streams sees those. A page may have fewer items than
        `limit`; the list ends where `nextCursor` is missing. Raises InvalidParameter.
        """
        return Pages(
            call=Call(
                method="GET",
                path=f"/v1{tenant_prefix(project)}/streams",
                query={"prefix": prefix, "limit": page_size},
                response=ListedStreamPage,
            )
        )


class Streams(StreamsCalls, SyncNamespace):
    pass


class AsyncStreams(StreamsCalls, AsyncNamespace):
    pass
