"""Lookups in `/etc/hosts` and at a name server on a loopback port."""

import os
from pathlib import Path

import dns.flags
import dns.message
import dns.rrset
import pytest

from postroad.outbound.system_resolver import Answer, NameUnresolved, SystemResolver
from tests.outbound.name_servers import addresses, name_server, system_resolver


async def test_both_kinds_of_addresses_are_found_with_the_shortest_ttl(tmp_path: Path) -> None:
    async with name_server({"hook.example": ["60 A 192.0.2.1", "60 A 192.0.2.2", "30 AAAA 2001:db8::1"]}) as server:
        answer = await system_resolver(tmp_path, server.port)("hook.example")
    assert set(answer.addresses) == set(addresses("192.0.2.1", "192.0.2.2", "2001:db8::1"))
    assert answer.ttl_seconds == 30


async def test_at_most_eight_addresses_of_a_kind_are_used(tmp_path: Path) -> None:
    async with name_server({"hook.example": [f"60 A 192.0.2.{n}" for n in range(20)]}) as server:
        assert len((await system_resolver(tmp_path, server.port)("hook.example")).addresses) == 8


async def test_a_chain_of_aliases_is_followed_and_its_shortest_ttl_counts(tmp_path: Path) -> None:
    records = {"hook.example": ["20 CNAME a.example."], "a.example": ["90 CNAME b.example."], "b.example": ["60 A 192.0.2.1"]}
    async with name_server(records) as server:
        assert await system_resolver(tmp_path, server.port)("hook.example") == Answer(addresses("192.0.2.1"), 20)


async def test_a_loop_of_aliases_is_unresolved(tmp_path: Path) -> None:
    def loop(answer: dns.message.Message) -> bytes:
        name = answer.question[0].name
        answer.answer = [dns.rrset.from_text(name, 60, "IN", "CNAME", str(name))]
        return answer.to_wire()

    async with name_server({"hook.example": ["60 A 192.0.2.1"]}) as server:
        server.edit = loop
        with pytest.raises(NameUnresolved):
            await system_resolver(tmp_path, server.port, seconds=1)("hook.example")


async def test_a_truncated_answer_is_requested_again_by_tcp(tmp_path: Path) -> None:
    def truncate(answer: dns.message.Message) -> bytes:
        answer.answer = []
        answer.flags |= dns.flags.TC
        return answer.to_wire()

    async with name_server({"hook.example": ["60 A 192.0.2.1"]}) as server:
        server.edit = truncate
        assert (await system_resolver(tmp_path, server.port)("hook.example")).addresses == addresses("192.0.2.1")
        assert server.tcp_queries == 2


async def test_an_answer_with_another_id_is_ignored(tmp_path: Path) -> None:
    def forge(answer: dns.message.Message) -> bytes:
        answer.id ^= 1
        return answer.to_wire()

    async with name_server({"hook.example": ["60 A 192.0.2.1"]}) as server:
        server.edit = forge
        with pytest.raises(NameUnresolved):
            await system_resolver(tmp_path, server.port, seconds=0.2)("hook.example")


async def test_search_domains_are_applied_as_configured(tmp_path: Path) -> None:
    async with name_server({"hooks.corp.example": ["60 A 192.0.2.1"]}) as server:
        resolver = system_resolver(tmp_path, server.port, options="search lab.example corp.example\n")
        assert (await resolver("hooks")).addresses == addresses("192.0.2.1")
        with pytest.raises(NameUnresolved):
            await resolver("hooks.")


@pytest.mark.parametrize("name", ["missing.example", "empty.example", "dead.example", "x" * 70 + ".example"])
async def test_a_name_without_addresses_is_unresolved(tmp_path: Path, name: str) -> None:
    async with name_server({"empty.example": ["60 TXT x"]}) as server:
        with pytest.raises(NameUnresolved):
            await system_resolver(tmp_path, server.port, seconds=0.2)(name)


async def test_one_kind_of_address_is_enough_if_the_other_gets_no_answer(tmp_path: Path) -> None:
    async with name_server({"hook.example": ["60 A 192.0.2.1"]}) as server:
        server.edit = lambda answer: None if answer.question[0].rdtype.name == "AAAA" else answer.to_wire()
        answer = await system_resolver(tmp_path, server.port, seconds=0.3)("hook.example")
        assert answer.addresses == addresses("192.0.2.1")


async def test_the_hosts_file_comes_first_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async with name_server({}) as server:
        resolver = system_resolver(
            tmp_path, server.port, hosts="192.0.2.7 Hook.example hooks # ours\nbad line\n192.0.2.8 hooks\n"
        )
        assert (await resolver("hook.EXAMPLE.")).addresses == addresses("192.0.2.7")
        assert (await resolver("hooks")).addresses == addresses("192.0.2.7", "192.0.2.8")
        (tmp_path / "hosts").write_text("192.0.2.9 hooks\n")
        os.utime(tmp_path / "hosts", ns=(1, 1))
        assert (await resolver("hooks")).addresses == addresses("192.0.2.9")
        assert server.queries == []


async def test_a_missing_configuration_is_unresolved_until_it_is_there(tmp_path: Path) -> None:
    async with name_server({"hook.example": ["60 A 192.0.2.1"]}) as server:
        resolver = SystemResolver(seconds=1, hosts=tmp_path / "hosts", configuration=tmp_path / "resolv.conf", port=server.port)
        with pytest.raises(NameUnresolved):
            await resolver("hook.example")
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        assert (await resolver("hook.example")).addresses == addresses("192.0.2.1")
