"""Hosts with an address each, in network namespaces: traffic between two of them can be cut, in one direction or in both.

Needs root and iproute2. The namespaces belong to processes that end with the test process, so nothing is left behind.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from postroad.runtime.process_supervisor import _die_with_parent

_TOOLS = ("ip", "unshare", "nsenter")


@dataclass(frozen=True, slots=True)
class Host:
    """An address, and the beginning of a command line that runs a program there."""

    address: str
    prefix: tuple[str, ...] = ()
    pid: int = 0  # of the process that holds its namespace


LOOPBACK = Host("127.0.0.1")


def missing_for_networks() -> str:
    """The reason why `Network` cannot be used here, or an empty string."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed (scripts/setup-netns)" if missing else ""


class Network:
    """Hosts on one bridge, which the test process is attached to as well."""

    def __init__(self, count: int) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self._cuts: set[tuple[Host, Host]] = set()
        first = 0xC6120000 + (os.getpid() % 8192) * 16  # a /28 of 198.18.0.0/15, which is reserved for tests of networks
        self._addresses = [".".join(str((first + offset) >> shift & 255) for shift in (24, 16, 8, 0)) for offset in range(1, 15)]
        self._own_device = f"pr{os.getpid()}"
        try:
            self._bridge = self._namespace()
            _run_in(self._bridge, "ip link add br0 type bridge && ip link set br0 up")
            subprocess.run(
                ["ip", "link", "add", self._own_device, "type", "veth", "peer", "name", "own", "netns", str(self._bridge)],
                check=True,
            )
            _run_in(self._bridge, "ip link set own master br0 up")
            subprocess.run(["ip", "address", "add", f"{self._addresses[-1]}/28", "dev", self._own_device], check=True)
            subprocess.run(["ip", "link", "set", self._own_device, "up"], check=True)
            self.hosts: Sequence[Host] = [self._host(number) for number in range(count)]
        except BaseException:
            self.close()
            raise

    def _namespace(self) -> int:
        """The id of a process in a new network namespace."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=_die_with_parent)
        self._holders.append(holder)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            assert time.monotonic() < deadline and holder.poll() is None, "no network namespace"
            time.sleep(0.002)
        return holder.pid

    def _host(self, number: int) -> Host:
        pid, address = self._namespace(), self._addresses[number]
        _run_in(
            self._bridge,
            f"ip link add h{number} type veth peer name eth0 netns {pid} && ip link set h{number} master br0 up",
        )
        # Rules before the table of local addresses can drop packets as they arrive, without an answer to their sender.
        _run_in(
            pid,
            f"ip link set lo up && ip address add {address}/28 dev eth0 && ip link set eth0 up"
            " && ip rule add pref 100 lookup local && ip rule del pref 0 && echo 0 > /proc/sys/net/ipv4/ip_forward",
        )
        return Host(address, ("nsenter", f"--net=/proc/{pid}/ns/net", "--"), pid)

    def cut_one_way(self, sender: Host, receiver: Host) -> None:
        """Packets from one to the other are lost."""
        self._rule("add", sender, receiver)
        self._cuts.add((sender, receiver))

    def cut(self, some: Sequence[Host], others: Sequence[Host]) -> None:
        """Packets between any of these and any of those are lost."""
        for one in some:
            for other in others:
                self.cut_one_way(one, other)
                self.cut_one_way(other, one)

    def heal(self) -> None:
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    @contextlib.contextmanager
    def partition(self, some: Sequence[Host], others: Sequence[Host]) -> Iterator[None]:
        self.cut(some, others)
        try:
            yield
        finally:
            self.heal()

    def _rule(self, action: Literal["add", "del"], sender: Host, receiver: Host) -> None:
        _run_in(receiver.pid, f"ip rule {action} pref 10 from {sender.address} blackhole")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "del", self._own_device], check=False, stderr=subprocess.DEVNULL)


def _run_in(pid: int, script: str) -> None:
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}: {done.stderr}"
