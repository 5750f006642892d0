"""Addresses of host names from `/etc/hosts` and the name servers of `/etc/resolv.conf`, without threads.

The operating system's `getaddrinfo` blocks a thread until its own timeout, whatever the caller's deadline is.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import dns.asyncresolver
import dns.exception
import dns.resolver
from dns.rdatatype import RdataType

from postroad.outbound.rules import Address

_ADDRESSES_MAX = 8  # of one kind; each is tried in turn, and the name's owner chooses their number
_FILE_SECONDS = 60.0  # an entry of /etc/hosts has no TTL

_FAILURES = (dns.exception.DNSException, OSError)  # an OSError includes a TimeoutError

T = TypeVar("T")


class NameUnresolved(Exception):
    """The name does not exist, has no addresses, or no name server answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Addresses of a name, and the seconds that they are valid for."""

    addresses: tuple[Address, ...]
    ttl_seconds: float


class SystemResolver:
    """Resolves names as the system is configured, search domains included. Changed files are read again."""

    def __init__(
        self,
        *,
        seconds: float,
        hosts: Path = Path("/etc/hosts"),
        configuration: Path = Path("/etc/resolv.conf"),
        port: int = 53,
    ) -> None:
        self._seconds, self._port = seconds, port
        self._hosts = _ParsedFile(hosts, _parse_hosts)
        self._resolver = _ParsedFile(configuration, dns.asyncresolver.Resolver)

    async def __call__(self, host: str) -> Answer:
        """Raises NameUnresolved, at the latest after `seconds`."""
        try:
            known = self._hosts.content().get(host.rstrip(".").lower())
        except OSError:
            known = None
        if known:
            return Answer(known, _FILE_SECONDS)
        try:
            resolver = self._resolver.content()
        except _FAILURES as exc:
            raise NameUnresolved from exc
        resolver.port, resolver.lifetime = self._port, self._seconds
        answers = await asyncio.gather(*(self._ask(resolver, host, kind) for kind in (RdataType.AAAA, RdataType.A)))
        found = [one for one in answers if one.addresses]
        if not found:
            raise NameUnresolved
        return Answer(tuple(address for one in found for address in one.addresses), min(one.ttl_seconds for one in found))

    async def _ask(self, resolver: dns.asyncresolver.Resolver, host: str, kind: RdataType) -> Answer:
        """Addresses of one kind; none after a failure, because those of the other kind may be enough."""
        try:
            async with asyncio.timeout(self._seconds):
                answer = await resolver.resolve(host, kind, raise_on_no_answer=False, search=True)
        except _FAILURES:
            return Answer((), 0)
        addresses = tuple(ipaddress.ip_address(record.address) for record in islice(answer.rrset or (), _ADDRESSES_MAX))
        return Answer(addresses, answer.chaining_result.minimum_ttl)


class _ParsedFile(Generic[T]):
    """The parsed content of a file, read again when the file changes."""

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        self._path, self._parse = path, parse
        self._version: tuple[int, int] | None = None
        self._content: T | None = None

    def content(self) -> T:
        """Raises OSError, and the errors of the parser."""
        status = self._path.stat()
        version = (status.st_mtime_ns, status.st_ino)
        if self._content is None or version != self._version:
            self._content, self._version = self._parse(str(self._path)), version
        return self._content


def _parse_hosts(path: str) -> dict[str, tuple[Address, ...]]:
    names: dict[str, tuple[Address, ...]] = {}
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.partition("#")[0].split()
        try:
            address = ipaddress.ip_address(words[0])
        except (IndexError, ValueError):
            continue
        for name in words[1:]:
            names[name.lower()] = (*names.get(name.lower(), ()), address)
    return names
