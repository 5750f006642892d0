"""Calls of `client.pipeline`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.insights import PipelineStatus
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class PipelineCalls:
    @operation
    def status(self) -> Call[PipelineStatus]:
        """Show the status of the pipeline. The last batch, and the number of messages that the pipeline has not read yet."""
        return Call(method="GET", path="/api/control/pipeline", response=PipelineStatus)


class Pipeline(PipelineCalls, SyncNamespace):
    pass


class AsyncPipeline(PipelineCalls, AsyncNamespace):
    pass
