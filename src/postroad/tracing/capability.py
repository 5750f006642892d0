"""Wiring of tracing: the task that exports spans, in processes that trace."""

from collections.abc import Sequence

from postroad.platform import BackgroundJob, Capability


class TracingCapability(Capability):
    name = "tracing"

    def background_jobs(self) -> Sequence[BackgroundJob]:
        exporter = self.platform.span_exporter
        return () if exporter is None else (BackgroundJob(exporter.run),)

    async def flush(self) -> None:
        if self.platform.span_exporter is not None:
            await self.platform.span_exporter.flush()


CAPABILITY = TracingCapability
