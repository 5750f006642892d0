"""Log lines about requests, each with the request's id and its trace."""

import traceback

import structlog

from postroad.http.request import Request
from postroad.http.request_span import trace_fields
from postroad.kernel.errors import Overloaded, PostroadError
from postroad.kernel.log_limit import LogLimit

log = structlog.get_logger("postroad.http")


class RequestLog:
    def __init__(self) -> None:
        self._overload_limit = LogLimit()

    def failure(self, problem: PostroadError, request_id: str, request: Request | None) -> None:
        suppressed = self._overload_limit.admit() if isinstance(problem, Overloaded) else 0
        if suppressed is not None:
            more = {**({"suppressed": suppressed} if suppressed else {}), **trace_fields(request)}
            log.warning("request_failed", request_id=request_id, code=problem.code, detail=problem.detail, **more)

    def crash(self, error: Exception, request_id: str, request: Request | None) -> None:
        trace = "".join(traceback.format_exception(error))
        log.error("request_crashed", request_id=request_id, error=trace, **trace_fields(request))

    def abort(self, request_id: str, request: Request | None) -> None:
        """Within the handler of the exception that ended the response."""
        log.error("response_aborted", request_id=request_id, error=traceback.format_exc(), **trace_fields(request))

    def access(self, method: str, route: str, status: int, seconds: float, request_id: str, request: Request | None) -> None:
        fields = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2), **trace_fields(request)}
        log.info("request", request_id=request_id, **fields)
