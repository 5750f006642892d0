"""`client.audit`: who changed what. Needs the scope `admin`."""

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, pages
from postroad.client.encoding import Moment, moment
from postroad.client.shapes.governance import AuditEntry, AuditPage


class AuditCalls:
    @pages
    def list(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        action: str | None = None,
        actor: str | None = None,
        target: str | None = None,
        request_id: str | None = None,
        tenant: str | None = None,
        page_size: int = 100,
    ) -> Pages[AuditEntry]:
        """The entries that fit, newest first, fetched page by page as they are needed.

        `action` may end in `*`; `actor` is a key's id. A platform key sees all tenants', or those of `tenant`, which may be
        `_platform`. Where few entries fit, the server is asked several times before the first comes.
        """
        query = {
            "from": moment(since),
            "to": moment(until),
            "action": action,
            "actor": actor,
            "target": target,
            "requestId": request_id,
            "tenant": tenant,
            "limit": page_size,
        }
        call: Call[AuditPage] = Call(method="GET", path="/api/control/audit", query=query, response=AuditPage)
        return Pages(call=call, items=lambda page: page.entries, cursor=lambda page: page.next_cursor)


class Audit(AuditCalls, SyncNamespace):
    pass


class AsyncAudit(AuditCalls, AsyncNamespace):
    pass
