"""Jobs that ended on a day: as the rules say, whoever works it out."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from postroad.api.jobs import Job
from postroad.jobs.event_decoder import purge_of
from postroad.jobs.rules import JobRecord, Purge, ended_at, job_of, with_purge
from postroad.kernel.event import Event
from postroad.pipeline.ended_jobs import ENDED, ended_jobs
from postroad.pipeline.job_archive import archive_messages
from postroad.queues.events import JobEvent, QueuePurged
from tests.jobs.lifecycles import Lifecycle, folded, purged
from tests.pipeline.frames import events_frame

DAY = date(2026, 11, 16)
T0 = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
BEGIN = T0 + DAY_MS // 2  # of the day


def day_of(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def by_the_rules(lives: Sequence[Sequence[JobEvent]], purges: Sequence[QueuePurged], day: date) -> dict[str, Job]:
    """What the API would show at the end of the day."""
    now = int((datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)).timestamp() * 1000) - 1
    shown = {}
    for events in lives:
        job = _settled(folded(events), purges)
        at = ended_at(job, now)
        if at is not None and day_of(at) == day:
            shown[job.job_id] = job_of(job, now)
    return shown


def _settled(job: JobRecord, purges: Sequence[QueuePurged]) -> JobRecord:
    known: list[Purge] = sorted(purge_of(one) for one in purges if one.queue == job.queue and one.tenant == job.tenant)
    return with_purge(job, next((one for one in known if one.at > job.begun_at), None))


def by_spark(spark: SparkSession, events: Sequence[Event], day: date) -> dict[str, Job]:
    jobs = ended_jobs(events_frame(spark, events), day)
    assert [(field.name, field.dataType) for field in jobs.schema] == [(field.name, field.dataType) for field in ENDED]
    bodies = [msgspec.json.decode(row["data"]) for row in archive_messages(jobs, day, "b").collect()]
    shown = [msgspec.convert(job, Job) for body in bodies for job in body["jobs"]]
    assert len({job.job_id for job in shown}) == len(shown)
    return {job.job_id: job for job in shown}


def _random_lifecycle(chance: random.Random) -> list[JobEvent]:
    """Steps of one job over three days, of which some were never told, in no order."""
    life = Lifecycle(queue=chance.choice(["q", "r", "s"]), t0=T0)
    at = chance.randint(0, DAY_MS)

    def later() -> int:
        nonlocal at
        at += chance.choice([0, 1, 1000, HOUR_MS, 12 * HOUR_MS])
        return at

    expires_at = at + chance.randint(0, 2 * DAY_MS) if chance.random() < 0.4 else None
    events: list[JobEvent] = [life.queued(at, delay_ms=5, expires_at=expires_at, corr=chance.choice([None, "c"]))]
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        for attempt in range(1, chance.randint(1, 3) + 1):
            events.append(life.leased(later(), attempt))
            events.append(
                chance.choice(
                    [
                        life.retried(later(), attempt, next_at=at + 1, reason=chance.choice([None, f"failed {attempt}"])),
                        life.requeued(later(), attempt, reason=chance.choice([None, "given back"])),
                        life.extended(later(), attempt, until=at + 1),
                        life.done(later(), attempt),
                        life.dead(later(), attempt, last_error=chance.choice([None, f"died {attempt}"])),
                    ]
                )
            )
        if chance.random() < 0.3:
            life.queue = chance.choice([life.queue, "r"])
            events.append(life.redriven(later()))
    told = [event for event in events if chance.random() < 0.85] or events
    chance.shuffle(told)
    return told


@pytest.mark.parametrize("seed", [1, 2])
def test_spark_says_what_the_rules_say(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    lives = [_random_lifecycle(chance) for _ in range(400)]
    purges = [purged(chance.randint(0, 3 * DAY_MS), queue=queue, t0=T0, is_deleted=chance.random() < 0.5) for queue in "qrr"]
    expected = by_the_rules(lives, purges, DAY)
    assert {job.status.value for job in expected.values()} == {"done", "dead", "expired"}
    assert by_spark(spark, [*purges, *(event for life in lives for event in life)], DAY) == expected


def test_what_a_job_ended_by_is_told(spark: SparkSession) -> None:
    names = ("done", "dead", "purged", "expired", "later", "open", "back")
    done, dead, dropped, expired, later, still_open, back = (Lifecycle(queue=name, job_id=name, t0=BEGIN) for name in names)
    events: list[Event] = [
        done.queued(0, corr="c"),
        done.retried(5, next_at=6, reason="no route"),
        done.done(10, 2),
        dead.dead(20, 3, reason="too many tries"),
        dropped.queued(0),
        purged(30, queue="purged", t0=BEGIN),
        purged(40, queue="purged", t0=BEGIN),
        expired.queued(0, expires_at=50),
        later.queued(0, expires_at=DAY_MS),
        still_open.leased(5),
        back.dead(5),
        back.redriven(DAY_MS + 5),
        back.done(DAY_MS + 9),
    ]
    jobs = ended_jobs(events_frame(spark, events), DAY).collect()
    found = {job["jobId"]: (job["status"], job["attempts"], job["lastError"], job["updatedAt"].timestamp()) for job in jobs}
    begin = BEGIN / 1000
    assert found == {
        "done": ("done", 2, "no route", begin + 0.010),
        "dead": ("dead", 3, "too many tries", begin + 0.020),
        "purged": ("expired", 0, "purged", begin + 0.030),
        "expired": ("expired", 0, None, begin),
    }


def test_so_many_jobs_are_told_in_a_message_the_newest_first(spark: SparkSession) -> None:
    rows: list[tuple[Any, ...]] = []
    for number in range(5):
        at = datetime(2026, 11, 16, 1, number // 2, tzinfo=UTC)  # two at a time were made at once
        rows.append(("acme", f"j{number}", "q", "done", 1, at, at, None, "c", f"m{number}", None, "2026-11-16"))
    old = datetime(2026, 11, 14, tzinfo=UTC)
    rows.append(("acme", "old", "q", "expired", 0, old, old, 'a "b"', None, "m", old, "2026-11-16"))
    rows.append(("globex", "other", "q", "dead", 1, old, old, "e", None, "m", None, "2026-11-16"))
    found = archive_messages(spark.createDataFrame(rows, ENDED), DAY, 7, jobs_max=2)
    assert found.dtypes == [("subject", "string"), ("message_id", "string"), ("data", "string")]
    told = {row["subject"]: (row["message_id"], json.loads(row["data"])) for row in found.collect()}
    assert {subject: [job["jobId"] for job in body["jobs"]] for subject, (_, body) in told.items()} == {
        "history.acme.20261116.20261116.0": ["j4", "j3"],
        "history.acme.20261116.20261116.1": ["j2", "j1"],
        "history.acme.20261116.20261116.2": ["j0"],
        "history.acme.20261114.20261116.0": ["old"],
        "history.globex.20261114.20261116.0": ["other"],
    }
    message_id, body = told["history.acme.20261114.20261116.0"]
    assert message_id == "history:7:acme:20261114:20261116:0"
    assert body == {
        "v": 1,
        "batch": 7,
        "jobs": [
            {
                "jobId": "old",
                "queue": "q",
                "status": "expired",
                "attempts": 0,
                "createdAt": "2026-11-14T00:00:00.000Z",
                "updatedAt": "2026-11-14T00:00:00.000Z",
                "lastError": 'a "b"',
                "correlationId": None,
                "messageId": "m",
                "expiresAt": "2026-11-14T00:00:00.000Z",
            }
        ],
    }
