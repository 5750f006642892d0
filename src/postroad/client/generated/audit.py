"""Calls of `client.audit`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.governance import AuditEntry, AuditPage, AuditVerification
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
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
        """List audit entries. Newest first. An admin key of a tenant sees the tenant's entries, a platform key all entries."""
        return Pages(
            call=Call(
                method="GET",
                path="/api/control/audit",
                query={
                    "from": moment(since),
                    "to": moment(until),
                    "action": action,
                    "actor": actor,
                    "target": target,
                    "requestId": request_id,
                    "tenant": tenant,
                    "limit": page_size,
                },
                response=AuditPage,
            )
        )

    @operation
    def verify(self) -> Call[AuditVerification]:
        """Verify the audit log.

        Compares all entries with the signed checkpoints, and reports entries that were removed or altered in the engine.
        Reads the whole log.
        """
        return Call(method="GET", path="/api/control/audit/verification", response=AuditVerification)


class Audit(AuditCalls, SyncNamespace):
    pass


class AsyncAudit(AuditCalls, AsyncNamespace):
    pass
