"""A DNS server on a loopback port whose answers a test chooses."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from postroad.outbound.system_resolver import SystemResolver

Edit = Callable[[dns.message.Message], bytes | None]


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """Records by name as in a zone file (`60 A 192.0.2.1`); names that begin with `dead` get no answer."""

    records: dict[str, list[str]] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)  # names, once per type
    tcp_queries: int = 0
    edit: Edit | None = None  # changes an answer before it is sent by UDP
    port: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        answer = self._answer(data)
        if answer is not None:
            sent = self.edit(answer) if self.edit else answer.to_wire()
            if sent is not None:
                self._transport.sendto(sent, address)  # type: ignore[attr-defined]

    def _answer(self, data: bytes) -> dns.message.Message | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = str(question.name).rstrip(".").lower()
        self.queries.append(name)
        if name.startswith("dead"):
            return None
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        owner = question.name
        while str(owner).rstrip(".") in self.records:
            lines = [line.split() for line in self.records[str(owner).rstrip(".")]]
            matching = [words for words in lines if words[1] in (question.rdtype.name, "CNAME")]
            for ttl, kind, target in matching:
                answer.answer.append(dns.rrset.from_text(owner, int(ttl), "IN", kind, target))
            if not matching or matching[0][1] != "CNAME":
                return answer
            owner = dns.name.from_text(matching[0][2])
        answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        self.tcp_queries += 1
        answer = self._answer(data)
        if answer is not None:
            sent = answer.to_wire()
            writer.write(len(sent).to_bytes(2) + sent)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def name_server(records: dict[str, list[str]]) -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    made = NameServer(records)
    while True:
        tcp = await asyncio.start_server(made.serve_tcp, "127.0.0.1", 0)
        made.port = tcp.sockets[0].getsockname()[1]
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: made, ("127.0.0.1", made.port))
            break
        except OSError:  # the port is in use for UDP
            tcp.close()
    try:
        yield made
    finally:
        transport.close()
        tcp.close()


def system_resolver(
    folder: Path, port: int, *, seconds: float = 5, hosts: str = "127.0.0.1 localhost\n", options: str = "options timeout:1\n"
) -> SystemResolver:
    (folder / "resolv.conf").write_text(f"nameserver 127.0.0.1\n{options}")
    (folder / "hosts").write_text(hosts)
    return SystemResolver(seconds=seconds, hosts=folder / "hosts", configuration=folder / "resolv.conf", port=port)


def addresses(*texts: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
    return tuple(ipaddress.ip_address(text) for text in texts)
