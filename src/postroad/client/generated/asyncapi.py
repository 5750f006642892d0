"""Calls of `client.asyncapi`. Generated from the route table by `make generate`; do not edit."""

from typing import Any

from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class AsyncapiCalls:
    @operation
    def get(self, *, limit: int | None = None) -> Call[dict[str, Any]]:
        """Show the AsyncAPI document of the tenant.

        AsyncAPI 3: the queues and topics that the key may use, with their JSON Schemas, durable streams, and the events
        of the tenant. Sorted by name; `info` says what was left out.
        """
        return Call(method="GET", path="/asyncapi.json", query={"limit": limit}, response=dict[str, Any])


class Asyncapi(AsyncapiCalls, SyncNamespace):
    pass


class AsyncAsyncapi(AsyncapiCalls, AsyncNamespace):
    pass
