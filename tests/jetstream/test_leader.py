import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.servers import OpenConnection, Server
from tests.waiting import eventually

from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.leader import Leadership
from postroad.jetstream.write_buffer_limit import WriteBufferLimit


class _Candidates:
    """Processes that compete for a lease, and those that are leading."""

    def __init__(self, bucket: Bucket, *, ttl_seconds: int = 1) -> None:
        self._bucket, self._ttl_seconds = bucket, ttl_seconds
        self.leading: list[str] = []
        self.most_at_once = 0
        self.terms: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.leaderships: dict[str, Leadership] = {}

    def enter(self, holder: str) -> None:
        self.leaderships[holder] = Leadership(self._bucket, "duty", holder, ttl_seconds=self._ttl_seconds)
        self.tasks[holder] = asyncio.create_task(self.leaderships[holder].run(lambda: self._lead(holder)))

    async def _lead(self, holder: str) -> None:
        self.leading.append(holder)
        self.terms.append(holder)
        self.most_at_once = max(self.most_at_once, len(self.leading))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.leading.remove(holder)

    async def leave(self, *holders: str) -> None:
        for holder in holders:
            self.tasks[holder].cancel()
        await asyncio.gather(*[self.tasks.pop(holder) for holder in holders], return_exceptions=True)

    async def leader(self, seconds: float = 5) -> str:
        return (await eventually(lambda: self.leading, seconds))[0]


@pytest.fixture
async def bucket(connection: Connection, committers: Committers, name: str) -> Bucket:
    made = Bucket(connection, name, committers)
    await made.ensure()
    return made


@pytest.fixture
async def candidates(bucket: Bucket) -> AsyncIterator[_Candidates]:
    made = _Candidates(bucket)
    yield made
    await made.leave(*made.tasks)


async def test_exactly_one_of_three_processes_leads_and_remains_leader(candidates: _Candidates, bucket: Bucket) -> None:
    for holder in ("ada", "bob", "cyd"):
        candidates.enter(holder)
    leader = await candidates.leader()
    won = await bucket.get("duty")
    assert won is not None and won.value == leader.encode()
    await eventually(lambda: _is_renewed(bucket, won.revision, times=3))  # more than one lease has passed
    assert candidates.terms == [leader]
    assert [holder for holder, one in candidates.leaderships.items() if one.is_leader] == [leader]


async def _is_renewed(bucket: Bucket, revision: int, *, times: int) -> bool:
    found = await bucket.get("duty")
    return found is not None and found.revision >= revision + times


async def test_another_process_leads_at_once_when_the_leader_stops(bucket: Bucket) -> None:
    candidates = _Candidates(bucket, ttl_seconds=3)
    for holder in ("ada", "bob"):
        candidates.enter(holder)
    leader = await candidates.leader()
    await candidates.leave(leader)
    assert not candidates.leading and not candidates.leaderships[leader].is_leader
    assert await bucket.get("duty") is None, "the lease is released"
    assert await candidates.leader(seconds=2) != leader
    assert candidates.most_at_once == 1
    await candidates.leave(*candidates.tasks)


async def test_another_process_leads_after_the_lease_of_a_dead_leader_expires(candidates: _Candidates, bucket: Bucket) -> None:
    await bucket.create("duty", b"dead", ttl_seconds=1)
    candidates.enter("ada")
    assert await candidates.leader(seconds=4) == "ada"


async def test_a_leader_whose_lease_was_overwritten_stops_and_does_not_delete_it(bucket: Bucket) -> None:
    candidates = _Candidates(bucket, ttl_seconds=3)
    candidates.enter("ada")
    await candidates.leader()
    await bucket.put("duty", b"another process", ttl_seconds=60)
    await eventually(lambda: not candidates.leading, seconds=1.6)  # it renews at one third of the lease and may lead for two
    await candidates.leave("ada")
    found = await bucket.get("duty")
    assert found is not None and found.value == b"another process"


async def test_a_leader_whose_lease_was_deleted_stops_until_it_acquires_it_again(candidates: _Candidates, bucket: Bucket) -> None:
    candidates.enter("ada")
    await candidates.leader()
    await bucket.delete("duty")
    await eventually(lambda: candidates.terms == ["ada", "ada"], seconds=2)
    assert candidates.most_at_once == 1


async def test_a_disconnected_leader_stops_before_its_lease_expires(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    bucket = Bucket(connection, name, Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)))
    await bucket.ensure()
    candidates = _Candidates(bucket, ttl_seconds=2)
    candidates.enter("ada")
    await candidates.leader()
    own_server.kill()
    started = asyncio.get_running_loop().time()
    await eventually(lambda: not candidates.leading, seconds=3)
    assert asyncio.get_running_loop().time() - started < 2
    await candidates.leave("ada")


async def test_leadership_ends_with_the_work_and_is_acquired_again(bucket: Bucket) -> None:
    terms = asyncio.Queue[None]()

    async def lead() -> None:
        terms.put_nowait(None)

    running = asyncio.create_task(Leadership(bucket, "short", "ada", ttl_seconds=3).run(lead))
    async with asyncio.timeout(30):
        for _ in range(3):
            await terms.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_of_the_work_is_raised_and_releases_the_lease(bucket: Bucket) -> None:
    async def lead() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(Leadership(bucket, "broken", "ada").run(lead), 30)
    assert await bucket.get("broken") is None


async def test_different_leases_have_independent_leaders(bucket: Bucket) -> None:
    started: set[str] = set()

    async def lead(duty: str) -> None:
        started.add(duty)
        await asyncio.get_running_loop().create_future()

    duties = ("one", "two")
    running = [asyncio.create_task(Leadership(bucket, duty, "ada").run(lambda duty=duty: lead(duty))) for duty in duties]  # type: ignore[misc]
    await eventually(lambda: started == set(duties))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
