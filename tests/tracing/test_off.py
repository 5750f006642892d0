"""Without an endpoint nothing is traced; and the log lines of both."""

import io
import json
from contextlib import redirect_stderr
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.spans import Sampler, Span, Tracer
from postroad.logs import configure_logging
from postroad.tracing.capability import TracingCapability
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.http.small import client_of, route, small_app
from tests.tracing.test_traces import new_trace


async def test_without_an_endpoint_there_is_no_tracer_no_task_and_no_span(
    engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    create = Span.__init__

    def counted(self: Span, *arguments: Any, **more: Any) -> None:
        made.append(self)
        create(self, *arguments, **more)

    monkeypatch.setattr(Span, "__init__", counted)
    async with running_gateway(gateway_settings(engine_url, otel_traces_sampler="always_on")) as gateway:
        platform = gateway.node.platform
        assert (platform.tracer, platform.span_exporter) == (None, None)
        assert platform.use(TracingCapability).background_jobs() == ()
        tenant = await gateway.tenant()
        queue = await tenant.queue()
        _, headers = new_trace()
        (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers=headers)).ok(201)
        [message] = await tenant.pull(queue)
        assert message["traceparent"] == headers["traceparent"]
        (await tenant.ack(queue, message["receiptId"])).ok()
    assert not made


async def test_a_process_that_traces_has_a_task_that_exports(node: Gateway) -> None:
    [job] = node.node.platform.use(TracingCapability).background_jobs()
    assert job.role is None


async def unavailable(_request: Request) -> Response:
    structlog.get_logger("test").warning("within")
    raise EngineUnavailable("no leader")


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_the_log_line_of_a_failed_request_has_the_trace(flags: str) -> None:
    """Also if the trace is not sampled, and without tracing."""
    trace_id, headers = new_trace(flags)
    with capture_logs() as logs:
        async with client_of(small_app(route("/fail", unavailable))) as client:
            assert (await client.get("/fail", headers=headers)).status == 503
            assert (await client.get("/fail")).status == 503
    lines = [one for one in logs if one["event"] == "request_failed"]
    assert [one.get("trace_id") for one in lines] == [trace_id, None]


async def test_every_log_line_of_a_traced_request_has_its_span() -> None:
    spans: list[Span] = []
    app = small_app(route("/fail", unavailable), tracer=Tracer(Sampler(True, 0), spans.append))
    trace_id, headers = new_trace()
    written = io.StringIO()
    with redirect_stderr(written):
        configure_logging("info", "json")
        try:
            async with client_of(app) as client:
                await client.get("/fail", headers=headers)
                await client.get("/fail")
        finally:
            structlog.reset_defaults()
    lines = [json.loads(line) for line in written.getvalue().splitlines() if line.startswith("{")]
    within = [(one.get("trace_id"), one.get("span_id")) for one in lines if one["event"] == "within"]
    assert within == [(trace_id, spans[0].span_id), (None, None)]
    assert [(one.name, one.error) for one in spans] == [("GET /fail", "503")]
