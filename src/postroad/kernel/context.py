"""The request that a service acts for."""

import msgspec

from postroad.kernel.identity import Caller
from postroad.kernel.spans import Span


class RequestContext(msgspec.Struct, frozen=True):
    """Caller, request id, client address and trace of one request. Events and audit entries are filled in from it.

    `traceparent` is stored with messages. `span`: that of the work, None unless its trace is sampled.
    """

    caller: Caller
    request_id: str = ""
    address: str = ""
    traceparent: str | None = None
    span: Span | None = None

    @property
    def tenant(self) -> str:
        return self.caller.tenant
