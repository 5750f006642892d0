"""The Python SDK: `Postroad` and `AsyncPostroad`, from one definition of every call."""

from postroad.client.clients import AsyncPostroad, Postroad
from postroad.client.producing import AsyncProducer, Producer
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
from postroad.client.shapes.queues import (
    Acked,
    Batch,
    BatchItem,
    DeadGroup,
    DeadMessage,
    Extended,
    Fault,
    Message,
    Published,
    Purged,
    Queue,
    SeenMessage,
)
from postroad.client.shapes.streams import Appended, Chunk, CreatedStream, StreamInfo, StreamMessage
from postroad.client.shapes.tasks import Job, JobsProgress, Redriven, Task

__all__ = [
    "Acked",
    "Appended",
    "AsyncPostroad",
    "AsyncProducer",
    "AuditEntry",
    "Batch",
    "BatchItem",
    "Chunk",
    "CreatedStream",
    "DeadGroup",
    "DeadMessage",
    "Extended",
    "Fault",
    "Invite",
    "Job",
    "JobsProgress",
    "JwtSecret",
    "Key",
    "MadeInvite",
    "MadeJwtSecret",
    "MadeKey",
    "MadeToken",
    "Message",
    "Postroad",
    "Preferences",
    "Producer",
    "Published",
    "Purged",
    "Queue",
    "Redriven",
    "SeenMessage",
    "StreamInfo",
    "StreamMessage",
    "Task",
    "Tenant",
    "TenantSettings",
    "WhoAmI",
]
