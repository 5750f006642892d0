"""The request that a service acts for."""

import msgspec

from postroad.kernel.identity import Caller


class RequestContext(msgspec.Struct, frozen=True):
    """Caller, request id, client address and trace of one request. Events and audit entries are filled in from it."""

    caller: Caller
    request_id: str = ""
    address: str = ""
    traceparent: str | None = None

    @property
    def tenant(self) -> str:
        return self.caller.tenant
