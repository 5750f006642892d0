"""Results as the pipeline's sink publishes them (decision 0021), without a pipeline."""

from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import new_id

DAY = 86_400_000
HOUR = 3_600_000
MINUTE = 60_000


def day_of(at: int) -> str:
    return rfc3339(at)[:10].replace("-", "")


def usage(at: int, **some: Any) -> dict[str, Any]:
    jobs, traffic = "deliveries done dead cancelled expired", "requests bytesIn bytesOut appends appendBytes fanoutMessages"
    names = ["published", "publishedBytes", *jobs.split(), *traffic.split()]
    return {"time": rfc3339(at), **dict.fromkeys(names, 0), "storageByteHours": 0.5, "storedBytes": 0, **some}


def latency(at: int, queue: str = "orders", phase: str = "wait", **some: Any) -> dict[str, Any]:
    numbers = {"count": 3, "p50": 10, "p95": 20, "p99": 30.5, "max": 31, "mean": 12.25}
    return {"time": rfc3339(at), "queue": queue, "phase": phase, **numbers, **some}


def dead_letters(at: int, queue: str = "orders", reason: str = "broken", **some: Any) -> dict[str, Any]:
    return {"time": rfc3339(at), "queue": queue, "reason": reason, "count": 2, "firstAttempt": 1, "lastAt": rfc3339(at), **some}


def sessions(at: int, **some: Any) -> dict[str, Any]:
    names = ("subscribed", "unsubscribed", "touched", "deleted", "expired")
    return {"time": rfc3339(at), **dict.fromkeys(names, 0), **some}


def backlog(at: int, queue: str = "orders", **some: Any) -> dict[str, Any]:
    numbers = {"ready": 2.5, "readyMax": 4, "leased": 1, "retrying": 0, "delayed": 0, "dead": 0, "oldestAgeMsMax": 1500}
    return {"time": rfc3339(at), "queue": queue, **numbers, **some}


def health(queue: str = "orders", status: str = "healthy", **some: Any) -> dict[str, Any]:
    counts = {"ready": 1, "leased": 0, "retrying": 0, "delayed": 0, "dead": 0, "waiting": 1}
    numbers = {**counts, "oldestAgeMs": 20, "expectedDrainSeconds": None}
    at = "2026-11-16T12:00:00Z"
    return {"queue": queue, "status": status, "problems": [], **numbers, "growthPerMinute": 0.0, "sampledAt": at, **some}


def commands(at: int, service: str = "shop", **some: Any) -> dict[str, Any]:
    names = {"role": "source", "service": service, "peer": "globex/bot", "command": "send", "outcome": "delivered"}
    return {"time": rfc3339(at), **names, "path": "fast", "count": 7, "p50": 2.5, "p95": 4, "p99": 5, "max": 6, **some}


def fairness(at: int, service: str = "bot", **some: Any) -> dict[str, Any]:
    names = {"role": "target", "service": service, "peer": "acme/shop", "command": "send"}
    return {"time": rfc3339(at), **names, "dispatched": 8, "warm": 6, "cold": 2, "refused": 1, "share": 0.8, **some}


def skew(at: int, service: str = "shop", **some: Any) -> dict[str, Any]:
    numbers = {"samples": 20, "p1": -0.5, "p50": 10.5, "p99": 11, "nearLimit": 0.05, "refused": 1}
    return {"time": rfc3339(at), "service": service, **numbers, **some}


def limits(at: int, service: str = "bot", **some: Any) -> dict[str, Any]:
    numbers = {"used": 5, "max": 10, "intervalSeconds": 60, "usage": 0.5, "refused": 3, "shadow": 0}
    return {"time": rfc3339(at), "service": service, "command": "send", **numbers, **some}


def telemetry(at: int, **some: Any) -> dict[str, Any]:
    return {"time": rfc3339(at), "emitted": 40, "waiting": 3, "waitingMax": 7, "dropped": 2, **some}


async def put(connection: Connection, subject: str, body: object, message_id: str = "") -> None:
    """Stored when this returns. Bytes go as they are."""
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(64 * 1024 * 1024))
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    stream = "INSIGHTS" if subject.startswith("insight.") else "HISTORY"
    await committers.of(stream).append(PendingMessage(subject, payload, message_id or new_id()))


async def publish(
    connection: Connection,
    tenant: str,
    report: str,
    day: str,
    part: str,
    rows: Sequence[dict[str, Any]],
    *,
    batch: Any = 1,
    body: Any = None,
    **more: Any,
) -> None:
    sent = {
        "v": 1,
        "report": report,
        "tenant": tenant,
        "day": day,
        "part": part,
        "batch": batch,
        "computedAt": "2026-11-16T12:00:04.000Z",
        "rows": list(rows),
        "dropped": 0,
        **more,
        **(body or {}),
    }
    await put(connection, f"insight.{tenant}.{report}.{day}.{part}", sent, f"{report}:{batch}:{tenant}:{day}:{part}")


async def publish_pipeline_status(
    connection: Connection, computed_at: int, rows: Sequence[dict[str, Any]] = (), *, batch: Any = 4181, **more: Any
) -> None:
    about = {"v": 1, "report": "pipeline", "tenant": "_platform", "day": "now", "part": "all", "batch": batch}
    numbers = {"events": 10, "seconds": 1.5, "quarantined": {"no-json": 2}, "late": 1, "duplicates": 3, "dropped": 0}
    body = {**about, **numbers, "computedAt": rfc3339(computed_at), "rows": list(rows), **more}
    await put(connection, "insight._platform.pipeline.now.all", body)
