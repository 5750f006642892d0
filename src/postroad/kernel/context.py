"""The request that a service acts for."""

from dataclasses import dataclass

from postroad.kernel.identity import Caller


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Caller, request id, client address and trace of one request. Events and audit entries are filled in from it."""

    caller: Caller
    request_id: str = ""
    address: str = ""
    traceparent: str | None = None

    @property
    def tenant(self) -> str:
        return self.caller.tenant
