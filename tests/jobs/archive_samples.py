"""Chunks of archived jobs as the pipeline publishes them (decision 0021), without a pipeline."""

from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import new_id

DAY = 86_400_000


def id_at(at: int) -> str:
    """Of a job that was made at that moment."""
    stamp = f"{at:012x}"
    return f"{stamp[:8]}-{stamp[8:]}{new_id()[13:]}"


def ended(at: int, queue: str = "orders", status: str = "done", **some: Any) -> dict[str, Any]:
    """A job that was created then and ended a second later, as the API shows it."""
    shown = {
        "jobId": id_at(at),
        "queue": queue,
        "status": status,
        "attempts": 1,
        "createdAt": rfc3339(at),
        "updatedAt": rfc3339(at + 1000),
        "lastError": None,
        "correlationId": None,
        "messageId": new_id(),
    }
    return {**shown, **some}


def day_text(at: int) -> str:
    return rfc3339(at)[:10].replace("-", "")


async def store(connection: Connection, subject: str, body: object) -> None:
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(64 * 1024 * 1024))
    await committers.of("HISTORY").append(PendingMessage(subject, payload, new_id()))


async def archive(
    connection: Connection, tenant: str, jobs: Sequence[dict[str, Any]], part: str = "0", ended_on: str = ""
) -> None:
    """In one chunk for each day that they were created on."""
    by_day: dict[str, list[dict[str, Any]]] = {}
    for job in sorted(jobs, key=lambda one: (one["createdAt"], one["jobId"]), reverse=True):
        by_day.setdefault(job["createdAt"][:10].replace("-", ""), []).append(job)
    for day, some in by_day.items():
        await store(connection, f"history.{tenant}.{day}.{ended_on or day}.{part}", {"v": 1, "batch": 7, "jobs": some})
