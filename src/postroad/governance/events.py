"""Event types of the audit log."""

from postroad.kernel.event import Event


class AuditDamaged(Event, frozen=True, kw_only=True, tag="audit.damaged"):
    """The audit log does not agree with its checkpoints; the tenant is `_platform`. `postroad audit verify` shows details."""

    version: int = 1
    kind: str
    detail: str


EVENTS: tuple[type[Event], ...] = (AuditDamaged,)
