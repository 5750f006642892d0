"""The span of a request, with the names and attributes of OpenTelemetry's conventions for HTTP servers."""

from typing import TYPE_CHECKING

from postroad.kernel.spans import Span, SpanKind, Tracer, parse_traceparent

if TYPE_CHECKING:
    from postroad.http.request import Request
    from postroad.http.routing import Route


def begin_span(tracer: Tracer, request: "Request", route: "Route") -> Span | None:
    """None if the trace is not sampled. Health checks are not traced: they would outnumber what matters."""
    if route.is_unlimited:
        return None
    return tracer.begin(request.header(b"traceparent"), "", SpanKind.SERVER)


def end_span(span: Span, request: "Request", route: "Route | None", status: int) -> None:
    """`status` is 499 if the client disconnected before the response, and 0 if the request was cancelled."""
    path = request.operation or ("" if route is None else route.path)
    span.name = f"{request.method} {path}"
    span.attributes = {
        "http.request.method": request.method,
        "http.route": path,
        "http.response.status_code": status,
        # The path of a request that needs no credential can contain one, such as an invite.
        "url.path": request.path if route is not None and route.scope is not None else path,
        "url.scheme": request.scheme,
        "client.address": request.client,
        "postroad.request.id": request.request_id,
    }
    if request._caller is not None:
        span.attributes["postroad.tenant"] = request._caller.tenant
    span.end(str(status) if status >= 500 or not status else None)


def trace_fields(request: "Request | None") -> dict[str, str]:
    """The trace of a request for its log lines: also if it is not sampled, and while tracing is off."""
    context = None if request is None else parse_traceparent(request.traceparent)
    return {} if context is None else {"trace_id": context.trace_id}
