"""The cache of lookups and the share of each tenant in them."""

import asyncio

import pytest

from postroad.outbound.fair_slots import SlotLimits, SlotsBusy
from postroad.outbound.resolver import Resolver, _Entry
from postroad.outbound.system_resolver import Answer, NameUnresolved
from tests.outbound.name_servers import addresses
from tests.waiting import eventually

FOUND = addresses("192.0.2.1")


class Names:
    """Answers at once, except for names that begin with `dead`, while `open` is not set; unknown names, and dead ones while
    `is_gone` is true, are unresolved."""

    def __init__(self, ttl_seconds: float = 60) -> None:
        self.ttl_seconds, self.now = ttl_seconds, 0.0
        self.queries: list[str] = []
        self.open = asyncio.Event()
        self.is_gone = False

    async def __call__(self, host: str) -> Answer:
        self.queries.append(host)
        if host.startswith("dead"):
            await self.open.wait()
        if host.startswith("unknown") or (host.startswith("dead") and self.is_gone):
            raise NameUnresolved
        return Answer(FOUND, self.ttl_seconds)

    def resolver(self, *, per_tenant: int = 2, total: int = 100, names_max: int = 100) -> Resolver:
        return Resolver(self, SlotLimits(total, per_tenant, 1), names_max=names_max, clock=lambda: self.now)


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize(("ttl_seconds", "kept_seconds"), [(60, 60), (0, 5), (86_400, 300)])
async def test_an_answer_is_cached_for_its_ttl_within_bounds(ttl_seconds: float, kept_seconds: float) -> None:
    names = Names(ttl_seconds)
    resolver = names.resolver()
    for names.now in (0, kept_seconds - 0.1, kept_seconds):
        assert await resolver.resolve("a", "hook.example", after(1)) == FOUND
    assert len(names.queries) == 2


async def test_a_failure_is_cached_for_ten_seconds() -> None:
    names = Names()
    resolver = names.resolver()
    for names.now in (0, 9.9, 10):
        with pytest.raises(NameUnresolved):
            await resolver.resolve("a", "unknown.example", after(1))
    assert len(names.queries) == 2


async def test_concurrent_lookups_of_a_name_are_one_and_survive_the_caller_that_began_it() -> None:
    names = Names()
    resolver = names.resolver()
    first = asyncio.create_task(resolver.resolve("a", "dead.example", after(5)))
    second = asyncio.create_task(resolver.resolve("a", "dead.example", after(5)))
    await eventually(lambda: names.queries)
    first.cancel()
    names.open.set()
    assert await second == FOUND
    assert names.queries == ["dead.example"]


async def test_a_tenant_with_hanging_lookups_delays_only_itself() -> None:
    names = Names()
    resolver = names.resolver(per_tenant=2)
    hanging = [asyncio.create_task(resolver.resolve("bad", f"dead{n}.example", after(30))) for n in range(10)]
    await eventually(lambda: len(names.queries) == 2)
    with pytest.raises(SlotsBusy):
        await resolver.resolve("bad", "hook.example", after(0.01))
    assert await resolver.resolve("good", "hook.example", after(5)) == FOUND
    names.open.set()
    await asyncio.gather(*hanging)


async def test_names_that_are_not_answered_again_delay_no_other_name_of_their_tenant() -> None:
    names = Names()
    names.is_gone = True
    resolver = names.resolver(per_tenant=2)
    dead = [f"dead{n}.example" for n in range(10)]
    names.open.set()
    assert await resolver.resolve("a", "known.example", after(5)) == FOUND
    for host in dead:
        with pytest.raises(NameUnresolved):
            await resolver.resolve("a", host, after(5))
    names.open.clear()
    names.queries.clear()
    names.now = 1000  # nothing of before is valid
    waiting = [asyncio.create_task(resolver.resolve("a", host, after(30))) for host in dead]
    try:
        await eventually(lambda: len(names.queries) == 2)
        for host in ("known.example", "new.example"):
            assert await resolver.resolve("a", host, after(5)) == FOUND
        waiting += [asyncio.create_task(resolver.resolve("a", f"dead-new{n}.example", after(30))) for n in range(10)]
        await eventually(lambda: len(names.queries) == 6)
        names.now = 2000
        assert await resolver.resolve("a", "known.example", after(5)) == FOUND  # nor do new ones
    finally:
        names.open.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, NameUnresolved) for one in outcomes)


async def test_a_lookup_is_not_repeated_by_a_caller_that_has_waited_since_the_name_was_new() -> None:
    answers = {host: asyncio.Event() for host in ("first.example", "second.example")}
    queries: list[str] = []

    async def query(host: str) -> Answer:
        queries.append(host)
        await answers[host].wait()
        return Answer(FOUND, 60)

    resolver = Resolver(query, SlotLimits(100, 1, 1))
    calls = [asyncio.create_task(resolver.resolve("a", host, after(30))) for host in answers]  # the second one waits
    await eventually(lambda: queries)
    resolver._store("a", "second.example", _Entry((), 0))  # as a lookup would have done that failed and has expired
    calls.append(asyncio.create_task(resolver.resolve("a", "second.example", after(30))))
    await eventually(lambda: len(queries) == 2)
    answers["first.example"].set()
    await calls[0]
    await asyncio.sleep(0)  # its slot is that of the second one now
    answers["second.example"].set()
    assert await asyncio.gather(*calls) == [FOUND, FOUND, FOUND]
    assert queries == ["first.example", "second.example"]


async def test_a_caller_waits_for_a_lookup_no_longer_than_its_deadline() -> None:
    names = Names()
    resolver = names.resolver()
    with pytest.raises(TimeoutError):
        await resolver.resolve("a", "dead.example", after(0.01))
    names.open.set()
    assert await resolver.resolve("a", "dead.example", after(5)) == FOUND
    assert names.queries == ["dead.example"]


async def test_a_full_cache_drops_the_oldest_name_of_the_tenant_with_most_names() -> None:
    names = Names()
    resolver = names.resolver(names_max=4)
    await resolver.resolve("small", "hook.example", after(1))
    for n in range(10):
        await resolver.resolve("large", f"{n}.example", after(1))
    names.queries.clear()
    await resolver.resolve("small", "hook.example", after(1))
    await resolver.resolve("large", "9.example", after(1))
    assert names.queries == []
    await resolver.resolve("large", "0.example", after(1))
    assert names.queries == ["0.example"]
