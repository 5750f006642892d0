"""`client.audit`: the audit log. Needs the scope `admin`."""

from postroad.api.governance import AuditEntry, AuditPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, pages
from postroad.client.encoding import Moment, moment


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
        """List audit entries, newest first.

        `action` may end in `*`; `actor` is the id of a key. A platform key lists the entries of all tenants, or of `tenant`,
        which may be `_platform`. If few entries match, the first one may take several requests.
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
        return Pages(call=Call(method="GET", path="/api/control/audit", query=query, response=AuditPage))


class Audit(AuditCalls, SyncNamespace):
    pass


class AsyncAudit(AuditCalls, AsyncNamespace):
    pass
