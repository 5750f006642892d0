"""Jobs over HTTP, with callers of the tests' own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from postroad.governance.audit import AUDIT_STREAM
from postroad.http.app import App
from postroad.http.request import Request, RevocationWatch
from postroad.http.routing import Route, Router
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import Forbidden
from postroad.kernel.identity import ALL_SCOPES, Caller, RouteRequirement
from postroad.telemetry.outbox import Outbox
from tests.gateway import Client, served, session
from tests.http.small import settings_of
from tests.jobs.conftest import Background, jobs_on, make_streams, outbox_on, send
from tests.jobs.lifecycles import Lifecycle
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

NewLifecycle = Callable[..., Lifecycle]


class TenantHeaderAuthenticator:
    """Lets in whoever says who they are: `tenant`, and the globs of their queues if they are kept to some."""

    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, request: Request, route: Route) -> Caller:
        is_platform = request.header(b"platform") is not None
        if route.scope is RouteRequirement.PLATFORM and not is_platform:
            raise Forbidden("platform only")
        globs = request.header(b"globs")
        allowed = {"queue": tuple(globs.split(","))} if globs else None
        return Caller(request.header(b"tenant") or "", "k", frozenset(ALL_SCOPES), is_platform, allowed=allowed)

    def watch(self, caller: Caller) -> RevocationWatch:
        raise AssertionError("nothing here goes on for long")


@pytest.fixture
async def engine(own_server: Server, open_connection: OpenConnection) -> Connection:
    connection = await open_connection(own_server.url)
    await make_streams(connection)
    return connection


@pytest.fixture
def outbox(engine: Connection) -> Outbox:
    return outbox_on(engine)


@pytest.fixture
async def client(engine: Connection, tmp_path: Path, background: Background, tenant_id: str) -> AsyncIterator[Client]:
    jobs = jobs_on(engine, tmp_path, 30)
    background(jobs.lead())
    app = App(Router(jobs.routes()), TenantHeaderAuthenticator(), settings_of())
    async with served(app) as url, session() as opened:
        yield Client(url, opened, {"tenant": tenant_id})


async def test_a_job_has_the_seeds_fields(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    one = lifecycle("orders")
    await send(
        outbox, one.queued(corr="cart-7", group="customer 9"), one.leased(5), one.retried(9, next_at=60_000, reason="no route")
    )
    found = (await client.get(f"/v1/jobs/{one.job_id}")).ok()
    assert found == {
        "jobId": one.job_id,
        "queue": "orders",
        "status": "retrying",
        "attempts": 1,
        "createdAt": rfc3339(one.t0),
        "updatedAt": rfc3339(one.t0 + 9),
        "lastError": "no route",
        "correlationId": "cart-7",
        "groupId": "customer 9",
        "messageId": one.message_id,
        "dueAt": rfc3339(one.t0 + 60_000),
    }


async def test_fields_without_a_value_are_null_or_left_out(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    one = lifecycle()
    await send(outbox, one.queued(expires_at=10**6), one.leased(5, until=10**5))
    found = (await client.get(f"/v1/jobs/{one.job_id}")).ok()
    assert (found["lastError"], found["correlationId"]) == (None, None)
    assert (found["leaseUntil"], found["expiresAt"]) == (rfc3339(one.t0 + 10**5), rfc3339(one.t0 + 10**6))
    assert not {"dueAt", "groupId"} & found.keys()


async def test_a_job_that_is_not_there_is_404(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    (await client.get("/v1/jobs/unknown")).problem(404, "job-not-found")
    (await client.get("/v1/jobs/unknown/events")).problem(404, "job-not-found")
    other_tenant = client.with_headers(tenant="another")
    (await other_tenant.get(f"/v1/jobs/{one.job_id}")).problem(404, "job-not-found")
    assert (await other_tenant.get("/v1/jobs")).ok() == {"jobs": [], "nextCursor": None}


async def test_lists_are_filtered_and_paged(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    lifecycles = [lifecycle("a" if number % 2 else "b") for number in range(10)]
    await send(
        outbox, *(one.queued(number * 10, corr=f"c{number % 3}", group=f"g{number % 4}") for number, one in enumerate(lifecycles))
    )
    await send(outbox, *(one.done(200) for one in lifecycles[:4]))
    ids = [one.job_id for one in lifecycles]

    async def listed(query: str) -> list[int]:
        found: list[int] = []
        cursor = ""
        while True:
            page = (await client.get(f"/v1/jobs?limit=2{query}{cursor}")).ok()
            found += [ids.index(job["jobId"]) for job in page["jobs"]]
            if page["nextCursor"] is None:
                return found
            assert len(page["jobs"]) == 2
            cursor = f"&cursor={page['nextCursor']}"

    base = lifecycles[0].t0
    assert await listed("") == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert await listed("&queue=a") == [9, 7, 5, 3, 1]
    assert await listed("&status=done") == [3, 2, 1, 0]
    assert await listed("&status=queued&queue=b") == [8, 6, 4]
    assert await listed("&correlationId=c0") == [9, 6, 3, 0]
    assert await listed("&groupId=g1") == [9, 5, 1]
    assert await listed("&groupId=g1&queue=a&status=done") == [1]
    assert await listed("&groupId=g1&correlationId=c2") == [5]
    assert await listed("&groupId=g") == []
    assert await listed(f"&messageId={lifecycles[4].message_id}") == [4]
    assert await listed("&queue=unknown") == []
    assert [lifecycles[index].t0 - base + index * 10 for index in await listed(f"&from={rfc3339(base + 50)}")][-1] >= 50
    assert set(await listed(f"&to={rfc3339(base + 50)}")) | set(await listed(f"&from={rfc3339(base + 50)}")) == set(range(10))


async def test_a_key_kept_to_some_queues_sees_full_pages_of_their_jobs(
    client: Client, outbox: Outbox, lifecycle: NewLifecycle
) -> None:
    mine, theirs = [lifecycle("mine.1") for _ in range(4)], [lifecycle("theirs") for _ in range(6)]
    await send(outbox, *(one.queued(number) for number, one in enumerate(mine + theirs)))
    kept = client.with_headers(globs="mine.*")
    page = (await kept.get("/v1/jobs?limit=3")).ok()
    assert [job["jobId"] for job in page["jobs"]] == [one.job_id for one in mine[:0:-1]]
    rest = (await kept.get(f"/v1/jobs?limit=3&cursor={page['nextCursor']}")).ok()
    assert ([job["jobId"] for job in rest["jobs"]], rest["nextCursor"]) == ([mine[0].job_id], None)
    assert (await kept.get("/v1/jobs?queue=theirs")).ok()["jobs"] == []
    (await kept.get(f"/v1/jobs/{theirs[0].job_id}")).problem(404, "job-not-found")
    (await kept.get(f"/v1/jobs/{theirs[0].job_id}/events")).problem(404, "job-not-found")


async def test_a_jobs_events_come_oldest_first_in_pages(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    one = lifecycle()
    await send(outbox, one.queued(), one.leased(5), one.extended(7, until=10**6), one.done(9))
    first = (await client.get(f"/v1/jobs/{one.job_id}/events?limit=3")).ok()
    assert [event["event"] for event in first["events"]] == ["job.queued", "job.leased", "job.extended"]
    assert first["events"][1]["attempt"] == 1
    rest = (await client.get(f"/v1/jobs/{one.job_id}/events?limit=3&cursor={first['nextCursor']}")).ok()
    assert ([event["event"] for event in rest["events"]], rest["nextCursor"]) == (["job.done"], None)


@pytest.mark.parametrize(
    "query",
    ["status=asleep", "from=yesterday", "to=2026-01-01", "limit=0", "limit=1001", "cursor=x", "cursor=1", "unknown=1", "queue="],
)
async def test_parameters_that_do_not_fit_are_400(client: Client, query: str) -> None:
    (await client.get(f"/v1/jobs?{query}")).problem(400, "invalid-parameter")


async def test_the_platform_sees_progress_and_rebuilds(
    client: Client, outbox: Outbox, lifecycle: NewLifecycle, engine: Connection
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    (await client.get("/api/control/jobs")).problem(403, "forbidden")
    (await client.post("/api/control/jobs/rebuild")).problem(403, "forbidden")
    platform = client.with_headers(platform="yes")
    (await client.get(f"/v1/jobs/{one.job_id}")).ok()
    found = (await platform.get("/api/control/jobs")).ok()
    assert found == {"position": 1, "target": 1, "behind": 0, "rebuilding": False, "rebuiltPosition": None}
    assert (await platform.post("/api/control/jobs/rebuild")).ok(202)["rebuilding"]
    audited = await stream_reader.last(engine, AUDIT_STREAM, "audit._platform")
    assert audited is not None and b'"jobs.rebuild"' in audited.payload

    async def is_over() -> bool:
        return not (await platform.get("/api/control/jobs")).ok()["rebuilding"]

    await eventually(is_over)
    assert (await client.get(f"/v1/jobs/{one.job_id}")).ok()["status"] == "queued"


async def test_a_second_rebuild_is_409(client: Client, outbox: Outbox, lifecycle: NewLifecycle) -> None:
    lifecycles = [lifecycle() for _ in range(3000)]
    for start in range(0, len(lifecycles), 100):
        await send(outbox, *(one.queued() for one in lifecycles[start : start + 100]))
    platform = client.with_headers(platform="yes")
    (await client.get(f"/v1/jobs/{lifecycles[-1].job_id}")).ok()
    (await platform.post("/api/control/jobs/rebuild")).ok(202)
    (await platform.post("/api/control/jobs/rebuild")).problem(409, "precondition-failed")
