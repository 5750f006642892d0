"""One tenant's unreachable webhooks: hosts that never answer, names whose name server is dead."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.outbound.client import Outbound
from postroad.outbound.fair_slots import SlotLimits
from postroad.outbound.resolver import Resolver
from postroad.outbound.rules import Destinations, OutboundFailed
from tests.outbound.name_servers import name_server, system_resolver
from tests.waiting import eventually

LOOPBACK = (ipaddress.IPv4Network("127.0.0.0/8"),)


class Receiver:
    """Answers on 127.0.0.1; never answers on the machine's other loopback addresses."""

    def __init__(self) -> None:
        self.port = self.hanging = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if writer.get_extra_info("sockname")[0] == "127.0.0.1":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                self.hanging += 1
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "0.0.0.0", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def test_hosts_that_never_answer_delay_neither_other_tenants_nor_other_hosts() -> None:
    outbound = Outbound(Destinations(LOOPBACK))
    async with receiver() as server:

        async def hang(host: int) -> None:
            await outbound.post("bad", f"http://127.0.0.{host}:{server.port}/", b"", {}, seconds=60)

        calls = [asyncio.create_task(hang(10 + n % 12)) for n in range(240)]
        await eventually(lambda: server.hanging >= 150)
        for tenant in ("good", "bad"):
            answer = await outbound.post(tenant, f"http://127.0.0.1:{server.port}/", b"", {}, seconds=30)
            assert answer.status == 200
        with pytest.raises(OutboundFailed, match="busy"):  # and not `timeout`: nothing is known about this host
            await outbound.post("bad", f"http://127.0.0.10:{server.port}/", b"", {}, seconds=0.01)
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await outbound.close()


async def test_names_of_a_dead_name_server_delay_no_other_tenant(tmp_path: Path) -> None:
    async with receiver() as server, name_server({"hook.example": ["60 A 127.0.0.1"]}) as names:
        resolver = Resolver(system_resolver(tmp_path, names.port, seconds=60), SlotLimits(256, 8, 1))
        outbound = Outbound(Destinations(LOOPBACK), lookup=resolver.resolve)

        async def look_up(n: int) -> None:
            await outbound.post("bad", f"http://dead{n}.example:{server.port}/", b"", {}, seconds=60)

        calls = [asyncio.create_task(look_up(n)) for n in range(100)]
        await eventually(lambda: len(set(names.queries)) == 8)
        answer = await outbound.post("good", f"http://hook.example:{server.port}/", b"", {}, seconds=30)
        assert answer.status == 200
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await outbound.close()
        await resolver.close()


async def test_an_unanswered_lookup_ends_at_its_deadline_and_frees_its_slot(tmp_path: Path) -> None:
    async with name_server({"hook.example": ["60 A 127.0.0.1"]}) as names:
        resolver = Resolver(system_resolver(tmp_path, names.port, seconds=0.2), SlotLimits(256, 1, 1))
        outbound = Outbound(Destinations(LOOPBACK), lookup=resolver.resolve)
        for n in range(2):
            with pytest.raises(OutboundFailed, match="dns"):
                await outbound.post("bad", f"http://dead{n}.example/", b"", {}, seconds=30)
        asked = len(names.queries)
        with pytest.raises(OutboundFailed, match="dns"):  # the failure is cached
            await outbound.post("bad", "http://dead0.example/", b"", {}, seconds=30)
        assert len(names.queries) == asked
        await resolver.close()
