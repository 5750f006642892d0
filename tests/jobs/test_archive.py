"""Jobs that only the archive has: over HTTP beside those that are known, and by themselves with budgets to run out of."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from postroad.api.jobs import Job
from postroad.http.app import App
from postroad.http.routing import Router
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_stream, ensure_stream, purge_stream
from postroad.jobs import metrics
from postroad.jobs.archive import Budget, JobArchive, history_stream
from postroad.jobs.capability import JobsCapability
from postroad.jobs.page_merge import LOWEST, KeyRange
from postroad.kernel.clock import now_ms, rfc3339
from postroad.telemetry.outbox import Outbox
from tests.gateway import Client, served, session
from tests.http.small import settings_of
from tests.jobs.archive_samples import DAY, archive, day_text, ended, id_at, store
from tests.jobs.conftest import Background, jobs_on, make_streams, outbox_on, send
from tests.jobs.lifecycles import Lifecycle
from tests.jobs.test_routes import TenantHeaderAuthenticator
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

NewLifecycle = Callable[..., Lifecycle]
KEEP_DAYS = 30
LONG_AGO = now_ms() // DAY * DAY - 100 * DAY + DAY // 2  # noon of a day that nobody here remembers


@pytest.fixture
async def engine(own_server: Server, open_connection: OpenConnection) -> Connection:
    connection = await open_connection(own_server.url)
    await make_streams(connection)
    await ensure_stream(connection, history_stream(1))
    return connection


@pytest.fixture
def outbox(engine: Connection) -> Outbox:
    return outbox_on(engine)


@pytest.fixture
def budget() -> Budget:
    return Budget()


@pytest.fixture
async def jobs(engine: Connection, tmp_path: Path, background: Background, budget: Budget) -> JobsCapability:
    made = jobs_on(engine, tmp_path, KEEP_DAYS, budget)
    background(made.lead())
    return made


@pytest.fixture
async def client(jobs: JobsCapability, tenant_id: str) -> AsyncIterator[Client]:
    app = App(Router(jobs.routes()), TenantHeaderAuthenticator(), settings_of())
    async with served(app) as url, session() as opened:
        yield Client(url, opened, {"tenant": tenant_id})


def old_lifecycle(tenant: str, at: int, queue: str = "orders") -> Lifecycle:
    return Lifecycle(tenant, queue, job_id=id_at(at), t0=at)


async def all_pages(client: Client, query: str = "", limit: int = 2, pages_max: int = 200) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(pages_max):
        page = (await client.get(f"/v1/jobs?limit={limit}{query}{cursor}")).ok()
        assert len(page["jobs"]) <= limit
        found += page["jobs"]
        if page["nextCursor"] is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"
    raise AssertionError("it does not end")


def ids(jobs: list[dict[str, Any]]) -> list[str]:
    return [job["jobId"] for job in jobs]


# One job


async def test_a_job_that_is_forgotten_here_is_found_in_the_archive(client: Client, engine: Connection, tenant_id: str) -> None:
    job = ended(LONG_AGO, status="dead", lastError="no route", correlationId="c")
    await archive(engine, tenant_id, [ended(LONG_AGO + 1), job, ended(LONG_AGO - 1)])
    assert (await client.get(f"/v1/jobs/{job['jobId']}")).ok() == {**job, "archived": True}


async def test_what_is_known_does_not_say_that_it_is_archived(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    assert "archived" not in (await client.get(f"/v1/jobs/{one.job_id}")).ok()
    assert "archived" not in (await client.get("/v1/jobs")).ok()["jobs"][0]


async def test_a_job_whose_first_event_is_of_the_next_day_is_found(client: Client, engine: Connection, tenant_id: str) -> None:
    midnight = LONG_AGO // DAY * DAY
    job = ended(midnight + 5, jobId=id_at(midnight - 3))
    await archive(engine, tenant_id, [job])
    assert (await client.get(f"/v1/jobs/{job['jobId']}")).ok()["archived"]


async def test_an_archive_is_its_tenants_own(client: Client, engine: Connection, tenant_id: str) -> None:
    job = ended(LONG_AGO)
    await archive(engine, tenant_id, [job])
    other_tenant = client.with_headers(tenant="another")
    (await other_tenant.get(f"/v1/jobs/{job['jobId']}")).problem(404, "job-not-found")
    (await other_tenant.get(f"/v1/jobs/{job['jobId']}/events")).problem(404, "job-not-found")
    assert (await other_tenant.get("/v1/jobs")).ok() == {"jobs": [], "nextCursor": None}


@pytest.mark.parametrize(
    "job",
    ["unknown", id_at(LONG_AGO), id_at(1), "ffffffff-ffff-7000-8000-000000000000", "x" * 36],
    ids=["no id", "of that moment", "of 1970", "of the far future", "as long as one"],
)
async def test_what_the_archive_does_not_have_is_404(client: Client, engine: Connection, tenant_id: str, job: str) -> None:
    await archive(engine, tenant_id, [ended(LONG_AGO)])
    (await client.get(f"/v1/jobs/{job}")).problem(404, "job-not-found")


async def test_an_archived_job_has_no_events(client: Client, engine: Connection, tenant_id: str) -> None:
    job = ended(LONG_AGO)
    await archive(engine, tenant_id, [job])
    assert (await client.get(f"/v1/jobs/{job['jobId']}/events")).ok() == {"events": [], "nextCursor": None}
    (await client.get(f"/v1/jobs/{id_at(LONG_AGO)}/events")).problem(404, "job-not-found")


async def test_a_key_kept_to_some_queues_sees_the_archived_jobs_of_these(
    client: Client, engine: Connection, tenant_id: str
) -> None:
    mine, theirs = ended(LONG_AGO, "mine.1"), ended(LONG_AGO + 1, "theirs")
    await archive(engine, tenant_id, [mine, theirs])
    kept = client.with_headers(globs="mine.*")
    assert ids(await all_pages(kept)) == [mine["jobId"]]
    assert (await kept.get(f"/v1/jobs/{mine['jobId']}")).ok()["archived"]
    (await kept.get(f"/v1/jobs/{theirs['jobId']}")).problem(404, "job-not-found")
    (await kept.get(f"/v1/jobs/{theirs['jobId']}/events")).problem(404, "job-not-found")


async def test_a_job_that_moved_to_another_queue_is_not_shown_to_those_of_the_first(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox
) -> None:
    """It died in `mine`, was archived so, and goes on in `theirs`."""
    moved = old_lifecycle(tenant_id, LONG_AGO, "theirs")
    await send(outbox, moved.queued())
    await archive(engine, tenant_id, [ended(LONG_AGO, "mine", "dead", jobId=moved.job_id)])
    kept = client.with_headers(globs="mine")
    (await kept.get(f"/v1/jobs/{moved.job_id}")).problem(404, "job-not-found")
    assert ids(await all_pages(kept)) == []


async def test_of_a_job_that_ended_twice_the_later_end_counts(client: Client, engine: Connection, tenant_id: str) -> None:
    first = ended(LONG_AGO, status="dead")
    second = {**first, "status": "done", "updatedAt": rfc3339(LONG_AGO + 3 * DAY)}
    await archive(engine, tenant_id, [second], ended_on=day_text(LONG_AGO + 3 * DAY))
    await archive(engine, tenant_id, [first])
    assert (await client.get(f"/v1/jobs/{first['jobId']}")).ok()["status"] == "done"
    assert [job["status"] for job in await all_pages(client)] == ["done"]
    assert await all_pages(client, "&status=dead") == []


async def test_a_chunk_that_is_published_again_takes_the_place_of_the_old_one(
    client: Client, engine: Connection, tenant_id: str
) -> None:
    job = ended(LONG_AGO, status="dead")
    await archive(engine, tenant_id, [job])
    assert (await client.get(f"/v1/jobs/{job['jobId']}")).ok()["status"] == "dead"
    await archive(engine, tenant_id, [{**job, "status": "done"}])
    assert (await client.get(f"/v1/jobs/{job['jobId']}")).ok()["status"] == "done"


# Lists


async def test_known_and_archived_jobs_are_one_list_newest_first(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    new, waiting = (
        [lifecycle() for _ in range(3)],
        [old_lifecycle(tenant_id, LONG_AGO + hour * 3_600_000) for hour in (-30, 1, 3)],
    )
    await send(outbox, *(one.queued(number) for number, one in enumerate(new)), *(one.queued() for one in waiting))
    archived = [ended(LONG_AGO + hour * 3_600_000) for hour in (-50, -20, 0, 2, 4, 30)]
    await archive(engine, tenant_id, archived)
    oldest_first = [
        archived[0]["jobId"],
        waiting[0].job_id,
        archived[1]["jobId"],
        archived[2]["jobId"],
        waiting[1].job_id,
        archived[3]["jobId"],
        waiting[2].job_id,
        archived[4]["jobId"],
        archived[5]["jobId"],
        *(one.job_id for one in new),
    ]
    for limit in (1, 2, 3, 5, 12, 100):
        found = await all_pages(client, limit=limit)
        assert ids(found) == oldest_first[::-1], limit
        assert [job["jobId"] for job in found if job.get("archived")] == [one["jobId"] for one in archived[::-1]]


async def test_filters_are_for_archived_jobs_too(client: Client, engine: Connection, tenant_id: str) -> None:
    jobs = [
        ended(
            LONG_AGO + number * DAY, "a" if number % 2 else "b", "dead" if number < 2 else "done", correlationId=f"c{number % 3}"
        )
        for number in range(6)
    ]
    await archive(engine, tenant_id, jobs)

    async def listed(query: str) -> list[int]:
        return [ids(jobs).index(job["jobId"]) for job in await all_pages(client, query)]

    assert await listed("") == [5, 4, 3, 2, 1, 0]
    assert await listed("&queue=a") == [5, 3, 1]
    assert await listed("&status=dead") == [1, 0]
    assert await listed("&status=done&queue=b") == [4, 2]
    assert await listed("&correlationId=c0") == [3, 0]
    assert await listed(f"&messageId={jobs[4]['messageId']}") == [4]
    assert await listed(f"&from={rfc3339(LONG_AGO + 2 * DAY)}") == [5, 4, 3, 2]
    assert await listed(f"&to={rfc3339(LONG_AGO + 2 * DAY)}") == [1, 0]
    assert await listed(f"&from={rfc3339(LONG_AGO + DAY)}&to={rfc3339(LONG_AGO + 4 * DAY)}&queue=a") == [3, 1]
    for status in ("queued", "delayed", "leased", "retrying"):
        assert await listed(f"&status={status}") == []


async def test_the_known_job_wins_over_its_archived_self(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox
) -> None:
    back = old_lifecycle(tenant_id, LONG_AGO)
    await send(outbox, back.queued(), back.dead(5), back.redriven(90 * DAY))
    await archive(engine, tenant_id, [ended(LONG_AGO, "orders", "dead", jobId=back.job_id), ended(LONG_AGO + 1)])
    assert (await client.get(f"/v1/jobs/{back.job_id}")).ok()["status"] == "queued"
    assert [job["status"] for job in await all_pages(client)] == ["done", "queued"]
    assert await all_pages(client, "&status=dead") == []
    assert ids(await all_pages(client, "&status=queued")) == [back.job_id]


async def test_jobs_of_late_whose_events_are_gone_are_found_in_the_archive(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    """The file was lost and the events had been trimmed: nothing here remembers what happened an hour ago."""
    hour_ago = now_ms() - 3_600_000
    await archive(engine, tenant_id, [ended(hour_ago)])
    assert await all_pages(client) == []  # nothing is missing yet: there is nothing to look for
    await send(outbox, lifecycle().queued())
    await purge_stream(engine, "JOBS")
    (await client.with_headers(platform="yes").post("/api/control/jobs/rebuild")).ok(202)
    after = lifecycle()
    await send(outbox, after.queued())

    async def listed() -> list[str]:
        return [job["status"] for job in await all_pages(client)]

    async def both() -> bool:
        return await listed() == ["queued", "done"]

    await eventually(both)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b'{"v":1}',
        b'{"v":2,"batch":1,"jobs":[]}',
        b'{"v":1,"batch":1,"jobs":"many"}',
        b"\xff\xfe",
        b"[" * 5000,
        {"v": 1, "jobs": [{"jobId": "x"}, 7, None, "job", {**ended(LONG_AGO), "createdAt": "yesterday"}]},
        {"v": 1, "jobs": [{**ended(LONG_AGO), "status": "asleep"}, {**ended(LONG_AGO), "createdAt": "0001-01-01T00:00:00Z"}]},
    ],
    ids=range(10),
)
async def test_what_cannot_be_read_is_left_out_and_the_rest_is_there(
    client: Client, engine: Connection, tenant_id: str, body: object
) -> None:
    before = metrics.history_unreadable._value.get()
    good = [ended(LONG_AGO), ended(LONG_AGO + 1)]
    await archive(engine, tenant_id, good, "1")
    day = day_text(LONG_AGO)
    for part in ("0", "2"):
        await store(engine, f"history.{tenant_id}.{day}.{day}.{part}", body)
    assert ids(await all_pages(client)) == ids(good)[::-1]
    assert (await client.get(f"/v1/jobs/{good[0]['jobId']}")).ok()["archived"]
    assert metrics.history_unreadable._value.get() > before


async def test_a_good_job_beside_a_bad_one_is_shown(client: Client, engine: Connection, tenant_id: str) -> None:
    good = ended(LONG_AGO)
    await archive(engine, tenant_id, [good, {**ended(LONG_AGO), "attempts": "many"}])
    assert ids(await all_pages(client)) == [good["jobId"]]


# When the archive is not there


async def test_without_the_stream_there_is_no_archive(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    await delete_stream(engine, "HISTORY")
    assert (await client.get("/v1/jobs")).ok()["nextCursor"] is None
    assert ids(await all_pages(client)) == [one.job_id]
    (await client.get(f"/v1/jobs/{id_at(LONG_AGO)}")).problem(404, "job-not-found")


@pytest.mark.parametrize("budget", [Budget(seconds=0)])
async def test_an_archive_that_does_not_answer_keeps_nobody_from_the_jobs_that_are_known(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    await archive(engine, tenant_id, [ended(LONG_AGO)])
    page = (await client.get("/v1/jobs")).ok()
    assert page["jobs"] == [] and page["nextCursor"]
    lifecycles = [lifecycle() for _ in range(3)]
    await send(outbox, *(one.queued(number) for number, one in enumerate(lifecycles)))
    page = (await client.get("/v1/jobs?limit=2")).ok()
    assert ids(page["jobs"]) == [lifecycles[2].job_id, lifecycles[1].job_id]
    page = (await client.get(f"/v1/jobs?limit=2&cursor={page['nextCursor']}")).ok()
    assert ids(page["jobs"]) == [lifecycles[0].job_id]
    assert page["nextCursor"], "there may be more, and nobody knows"
    (await client.get(f"/v1/jobs?cursor={page['nextCursor']}")).problem(503, "engine-unavailable")
    (await client.get(f"/v1/jobs/{lifecycles[0].job_id}")).ok()
    (await client.get(f"/v1/jobs/{id_at(LONG_AGO)}")).problem(503, "engine-unavailable")


@pytest.mark.parametrize("budget", [Budget(seconds=0)])
async def test_who_reads_the_newest_does_not_wait_for_the_archive(
    client: Client, engine: Connection, tenant_id: str, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    before = metrics.history_failures._value.get()
    await archive(engine, tenant_id, [ended(now_ms() - DAY), ended(LONG_AGO)])
    await send(outbox, *(lifecycle().queued(number) for number in range(3)))
    for query in ("limit=2", "status=queued", f"from={rfc3339(now_ms() - DAY)}"):
        (await client.get(f"/v1/jobs?{query}")).ok()
    assert metrics.history_failures._value.get() == before


# Budgets


def anything(_job: Job) -> bool:
    return True


WHOLE = KeyRange((LONG_AGO + 20 * DAY, LOWEST), (0, ""))


async def list_pages(history: JobArchive, tenant: str, limit: int, window: KeyRange = WHOLE) -> tuple[list[str], int]:
    """All pages of the archive, and how many it were."""
    found: list[str] = []
    for count in range(1, 1000):
        page = await history.page(tenant, window, limit, anything)
        assert [one.key for one in page.jobs] == sorted((one.key for one in page.jobs), reverse=True)
        assert len(page.jobs) <= limit
        found += [one.job.job_id for one in page.jobs]
        if page.reached is None:
            return found, count
        assert page.reached <= window.below
        assert all(one.key >= page.reached for one in page.jobs)
        window = KeyRange(page.reached, window.above)
    raise AssertionError("it does not end")


async def test_many_days_are_gone_through_a_few_at_a_time(engine: Connection, tenant_id: str) -> None:
    jobs = [ended(LONG_AGO + day * DAY) for day in (0, 1, 7, 15)]
    await archive(engine, tenant_id, jobs)
    history = JobArchive(engine, now_ms, Budget(days=3, days_back_max=120))
    found, pages = await list_pages(history, tenant_id, 10)
    assert found == ids(jobs)[::-1] and pages >= 12


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("is_in_order", [True, False], ids=["chunks by time", "chunks at random"])
async def test_many_chunks_of_a_day_are_learned_a_few_at_a_time(
    engine: Connection, tenant_id: str, limit: int, is_in_order: bool
) -> None:
    jobs = [ended(LONG_AGO + number * 1000) for number in range(60)]
    for part in range(20):
        some = jobs[part * 3 : part * 3 + 3] if is_in_order else jobs[part::20]
        await archive(engine, tenant_id, some, str(part))
    history = JobArchive(engine, now_ms, Budget(chunks_max=6, concurrency=2))
    found, _ = await list_pages(history, tenant_id, limit)
    assert found == ids(jobs)[::-1]


async def test_a_page_ends_where_its_budget_of_unread_chunks_does(engine: Connection, tenant_id: str) -> None:
    jobs = [ended(LONG_AGO + number * 1000) for number in range(20)]
    for part, job in enumerate(jobs):
        await archive(engine, tenant_id, [job], str(part))
    history = JobArchive(engine, now_ms, Budget(chunks_max=6, concurrency=2))
    read = counting(history)
    page = await history.page(tenant_id, WHOLE, 10, anything)
    assert (page.jobs, page.reached, len(read)) == ([], ((LONG_AGO // DAY + 1) * DAY, LOWEST), 6)
    page = await history.page(tenant_id, WHOLE, 10, anything)
    assert (page.jobs, len(read)) == ([], 12)


def counting(history: JobArchive) -> list[str]:
    """The chunks that it reads from now on."""
    read: list[str] = []
    reading = history._read

    async def counted(subject: str) -> Any:
        read.append(subject)
        return await reading(subject)

    history._read = counted  # type: ignore[method-assign]
    return read


async def test_a_page_reads_only_the_chunks_that_can_matter_once_they_are_known(engine: Connection, tenant_id: str) -> None:
    jobs = [ended(LONG_AGO + number * 1000) for number in range(60)]
    for part in range(20):
        await archive(engine, tenant_id, jobs[part * 3 : part * 3 + 3], str(part))
    history = JobArchive(engine, now_ms, Budget(concurrency=1))
    await history.page(tenant_id, WHOLE, 1, anything)
    read = counting(history)
    page = await history.page(tenant_id, KeyRange((LONG_AGO + 30_000, LOWEST), (0, "")), 4, anything)
    assert [one.job.job_id for one in page.jobs] == ids(jobs[26:30])[::-1]
    assert len(read) == 2


async def test_nothing_that_was_remembered_for_too_long_is_believed(engine: Connection, tenant_id: str) -> None:
    history = JobArchive(engine, now_ms, Budget(cache_seconds=0))
    await archive(engine, tenant_id, [ended(LONG_AGO)])
    assert len((await history.page(tenant_id, WHOLE, 10, anything)).jobs) == 1
    await archive(engine, tenant_id, [ended(LONG_AGO), ended(LONG_AGO + 1)])
    await archive(engine, tenant_id, [ended(LONG_AGO)], "1")
    assert len((await history.page(tenant_id, WHOLE, 10, anything)).jobs) == 3


async def test_what_a_tenant_had_goes_with_it(engine: Connection, tenant_id: str, jobs: JobsCapability) -> None:
    for tenant in (tenant_id, "another"):
        await archive(engine, tenant, [ended(LONG_AGO)])
    await jobs.delete_tenant(tenant_id)
    history = JobArchive(engine, now_ms)
    assert (await history.page(tenant_id, WHOLE, 10, anything)).jobs == []
    assert len((await history.page("another", WHOLE, 10, anything)).jobs) == 1
