"""The Python SDK: `Postroad` and `AsyncPostroad`, from one definition of every call."""

from postroad.client.clients import AsyncPostroad, Postroad
from postroad.client.shapes.access import (
    Invite,
    JwtSecret,
    Key,
    MadeInvite,
    MadeJwtSecret,
    MadeKey,
    MadeToken,
    Tenant,
    WhoAmI,
)
from postroad.client.shapes.governance import AuditEntry, Preferences, TenantSettings
from postroad.client.shapes.queues import Acked, Batch, BatchItem, Fault, Message, Published, Queue

__all__ = [
    "Acked",
    "AsyncPostroad",
    "AuditEntry",
    "Batch",
    "BatchItem",
    "Fault",
    "Invite",
    "JwtSecret",
    "Key",
    "MadeInvite",
    "MadeJwtSecret",
    "MadeKey",
    "MadeToken",
    "Message",
    "Postroad",
    "Preferences",
    "Published",
    "Queue",
    "Tenant",
    "TenantSettings",
    "WhoAmI",
]
