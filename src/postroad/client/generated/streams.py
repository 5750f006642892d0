"""Calls of `client.streams`. Generated from the route table by `make generate`; do not edit."""

from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import segments, tenant_prefix


class StreamsCalls:
    @operation
    def delete(self, stream: str, *, project: str | None = None) -> Call[None]:
        """Delete a stream. Its forks keep the data they share with it. Raises StreamNotFound, StreamGone."""
        return Call(method="DELETE", path=f"/v1{tenant_prefix(project)}/stream/{segments(stream)}")


class Streams(StreamsCalls, SyncNamespace):
    pass


class AsyncStreams(StreamsCalls, AsyncNamespace):
    pass
