"""The Python SDK: `Postroad` and `AsyncPostroad`, from one definition of every call."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroad.api.access import (
        Invite,
        IssuedInvite,
        IssuedJwtSecret,
        IssuedKey,
        IssuedToken,
        JwtSecret,
        Key,
        KeyProperties,
        Tenant,
        TenantState,
        TopicGrant,
        WhoAmI,
    )
    from postroad.api.buckets import (
        BucketBatchResult,
        BucketChange,
        BucketEntry,
        BucketInfo,
        BucketSettings,
        BucketStats,
        BucketValue,
        WrittenValue,
    )
    from postroad.api.command_search import FoundCommand
    from postroad.api.commands import (
        CommandAccepted,
        CommandBatchResult,
        CommandResult,
        CommandRoute,
        EmitToken,
        Grant,
        RegistryChange,
        RouteCheck,
        RouteTestResult,
        Service,
        ServiceConfig,
        TenantConfig,
    )
    from postroad.api.dead_letters import DeadGroup, DeadMessage, Redriven
    from postroad.api.governance import AuditEntry, AuditMode, AuditVerification, EffectiveSettings, TenantSettings
    from postroad.api.health import Readiness
    from postroad.api.insights import PipelineStatus
    from postroad.api.jobs import Job, JobsProgress, JobStatus
    from postroad.api.placement import Placement, Region, RegionOverview
    from postroad.api.problems import Problem
    from postroad.api.purging import Purged
    from postroad.api.queues import (
        BatchItem,
        BatchResult,
        Message,
        PeekedMessage,
        Published,
        Queue,
        QueueSettings,
        QueueStats,
    )
    from postroad.api.receipts import Acked, Extended
    from postroad.api.replays import CommandSelection, RefusedCommand, Replay, ReplayCounts, ReplayState
    from postroad.api.reports.backlog import BacklogRow
    from postroad.api.reports.commands import CommandsRow
    from postroad.api.reports.dead_letters import DeadLettersRow
    from postroad.api.reports.fairness import FairnessRow
    from postroad.api.reports.health import HealthRow
    from postroad.api.reports.latency import LatencyRow
    from postroad.api.reports.limits import LimitsRow
    from postroad.api.reports.sessions import SessionsRow
    from postroad.api.reports.skew import SkewRow
    from postroad.api.reports.telemetry import TelemetryRow
    from postroad.api.reports.usage import UsageRow
    from postroad.api.sessions import FannedOut, Fanout, Session, SessionSubscription, Subscribed, Touched, Unsubscribed
    from postroad.api.stream_subscriptions import Claim, PendingStream, StreamLink, StreamSubscription, WakeAcked
    from postroad.api.streams import Appended, Chunk, CreatedStream, StreamInfo, StreamMessage
    from postroad.api.tasks import Progress, Task, TaskState
    from postroad.api.topics import (
        PublishedTopicMessage,
        Topic,
        TopicBatchItem,
        TopicBatchResult,
        TopicGap,
        TopicMessage,
        TopicMessagePage,
        TopicReady,
        TopicReset,
        TopicSettings,
        TopicStats,
    )
    from postroad.client.clients import AsyncPostroad, Postroad
    from postroad.client.command_signer import NewCommand
    from postroad.client.producer import AsyncProducer, Producer

__all__ = [
    "Acked",
    "Appended",
    "AsyncPostroad",
    "AsyncProducer",
    "AuditEntry",
    "AuditMode",
    "AuditVerification",
    "BacklogRow",
    "BatchItem",
    "BatchResult",
    "BucketBatchResult",
    "BucketChange",
    "BucketEntry",
    "BucketInfo",
    "BucketSettings",
    "BucketStats",
    "BucketValue",
    "Chunk",
    "Claim",
    "CommandAccepted",
    "CommandBatchResult",
    "CommandResult",
    "CommandRoute",
    "CommandSelection",
    "CommandsRow",
    "CreatedStream",
    "DeadGroup",
    "DeadLettersRow",
    "DeadMessage",
    "EffectiveSettings",
    "EmitToken",
    "Extended",
    "FairnessRow",
    "FannedOut",
    "Fanout",
    "FoundCommand",
    "Grant",
    "HealthRow",
    "Invite",
    "IssuedInvite",
    "IssuedJwtSecret",
    "IssuedKey",
    "IssuedToken",
    "Job",
    "JobStatus",
    "JobsProgress",
    "JwtSecret",
    "Key",
    "KeyProperties",
    "LatencyRow",
    "LimitsRow",
    "Message",
    "NewCommand",
    "PeekedMessage",
    "PendingStream",
    "PipelineStatus",
    "Placement",
    "Postroad",
    "Problem",
    "Producer",
    "Progress",
    "Published",
    "PublishedTopicMessage",
    "Purged",
    "Queue",
    "QueueSettings",
    "QueueStats",
    "Readiness",
    "Redriven",
    "RefusedCommand",
    "Region",
    "RegionOverview",
    "RegistryChange",
    "Replay",
    "ReplayCounts",
    "ReplayState",
    "RouteCheck",
    "RouteTestResult",
    "Service",
    "ServiceConfig",
    "Session",
    "SessionSubscription",
    "SessionsRow",
    "SkewRow",
    "StreamInfo",
    "StreamLink",
    "StreamMessage",
    "StreamSubscription",
    "Subscribed",
    "Task",
    "TaskState",
    "TelemetryRow",
    "Tenant",
    "TenantConfig",
    "TenantSettings",
    "TenantState",
    "Topic",
    "TopicBatchItem",
    "TopicBatchResult",
    "TopicGap",
    "TopicGrant",
    "TopicMessage",
    "TopicMessagePage",
    "TopicReady",
    "TopicReset",
    "TopicSettings",
    "TopicStats",
    "Touched",
    "Unsubscribed",
    "UsageRow",
    "WakeAcked",
    "WhoAmI",
    "WrittenValue",
]

_MODULES = (
    "postroad.client.clients",
    "postroad.client.producer",
    "postroad.api.access",
    "postroad.api.dead_letters",
    "postroad.api.governance",
    "postroad.api.health",
    "postroad.api.insights",
    "postroad.api.jobs",
    "postroad.api.placement",
    "postroad.api.problems",
    "postroad.api.purging",
    "postroad.api.queue_stats",
    "postroad.api.queues",
    "postroad.api.receipts",
    "postroad.api.reports.backlog",
    "postroad.api.reports.dead_letters",
    "postroad.api.reports.health",
    "postroad.api.reports.latency",
    "postroad.api.reports.sessions",
    "postroad.api.reports.commands",
    "postroad.api.reports.fairness",
    "postroad.api.reports.limits",
    "postroad.api.reports.skew",
    "postroad.api.reports.telemetry",
    "postroad.api.reports.usage",
    "postroad.api.sessions",
    "postroad.api.stream_subscriptions",
    "postroad.api.streams",
    "postroad.api.tasks",
    "postroad.api.topics",
    "postroad.api.buckets",
    "postroad.api.commands",
    "postroad.api.command_search",
    "postroad.api.replays",
    "postroad.client.command_signer",
)


def __getattr__(name: str) -> Any:
    """Import the class with its first use: importing all of them is slow, and most programs need few."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            found = vars(module).get(name)
            if isinstance(found, type) and found.__module__ == module.__name__:  # not an alias, or imported by the module
                return globals().setdefault(name, found)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
