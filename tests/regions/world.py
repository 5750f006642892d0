"""Regions as hosts: one network namespace each, joined by a router in this process that delays every packet by the distance
between sender and receiver, and drops those of links that are cut.

Needs root and /dev/net/tun. The namespaces belong to processes that end with this one, so nothing is left behind.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from postroad.kernel.regions import RegionEntry, distance_km
from postroad.runtime.process_supervisor import _die_with_parent
from tests.network import Host, missing_for_networks

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_PACKET_BYTES_MAX = 65_000
_KM_PER_MS = 100.0  # light in fibre takes 1 ms for 200 km; paths are about twice as long as the distance
_NEAR_MS = 0.5
_ROUTER_NICENESS = 0


def missing_for_world() -> str:
    """The reason why `World` cannot be used here, or an empty string."""
    return missing_for_networks() or ("" if Path("/dev/net/tun").exists() else "there is no /dev/net/tun")


class World:
    """`hosts` has one host per region, in order. The present process is everywhere: its packets are not delayed."""

    def __init__(self, regions: Sequence[RegionEntry]) -> None:
        first = 0xC6120000 + (os.getpid() % 2048) * 64  # a /26 of 198.18.0.0/15, which is reserved for tests of networks
        addresses = [first + number for number in range(1, len(regions) + 2)]
        self._regions = dict(zip(addresses, regions, strict=False))
        self._holders: list[subprocess.Popen[bytes]] = []
        self._devices: dict[int, int] = {}  # file descriptors by address
        self._cut: set[tuple[str, str]] = set()  # pairs of geos
        self._own_device = f"world{os.getpid()}"
        try:
            self.hosts = [self._host(address) for address in addresses[:-1]]
            self._devices[addresses[-1]] = _open_device(self._own_device)
            _run(_device_commands(self._own_device, addresses[-1]))
        except BaseException:
            self.close()
            raise
        self._delays = {
            (one, other): _NEAR_MS / 1000 + distance_km(self._regions[one], self._regions[other]) / _KM_PER_MS / 1000
            for one, other in itertools.permutations(self._regions, 2)
        }
        self._is_closing = False
        self._router = threading.Thread(target=self._route, daemon=True)
        self._router.start()

    def delay_ms(self, one: Host, other: Host) -> float:
        """Of a packet from one to the other."""
        return self._delays.get((_number(one.address), _number(other.address)), 0.0) * 1000

    @contextlib.contextmanager
    def cut(self, geo: str, others: Iterable[str]) -> Iterator[None]:
        """Packets between the geo and the others are lost within the block."""
        pairs = {pair for other in others for pair in ((geo, other), (other, geo))}
        self._cut |= pairs
        try:
            yield
        finally:
            self._cut -= pairs

    def _host(self, address: int) -> Host:
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=_die_with_parent)
        self._holders.append(holder)
        own, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            assert time.monotonic() < deadline and holder.poll() is None, "no network namespace"
            time.sleep(0.002)
        prefix = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
        self._devices[address] = _open_device("wan0", holder.pid)
        _run(f"ip link set lo up && {_device_commands('wan0', address)}", prefix)
        return Host(_text(address), prefix, holder.pid)

    def _route(self) -> None:
        """The router: one thread for all packets. A busy machine must not slow it down: a network would not be slower, either."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _ROUTER_NICENESS)
        poll, senders = select.epoll(), {descriptor: address for address, descriptor in self._devices.items()}
        for descriptor in senders:
            poll.register(descriptor, select.EPOLLIN)
        waiting: list[tuple[float, int, int, bytes]] = []
        number = itertools.count()
        while not self._is_closing:
            pause = 0.2 if not waiting else min(0.2, max(0.0, waiting[0][0] - time.monotonic()))
            for descriptor, _ in poll.poll(pause):
                for packet in _packets(descriptor):
                    target = int.from_bytes(packet[16:20], "big")
                    delay = self._delay(senders[descriptor], target)
                    if delay is not None:
                        heapq.heappush(waiting, (time.monotonic() + delay, next(number), target, packet))
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):  # its queue is full: lost, like on any network
                    os.write(self._devices[target], packet)
        poll.close()

    def _delay(self, sender: int, target: int) -> float | None:
        """None: the packet is lost."""
        if target not in self._devices:
            return None
        if sender not in self._regions or target not in self._regions:
            return 0.0
        if (self._regions[sender].geo, self._regions[target].geo) in self._cut:
            return None
        return self._delays[sender, target]

    def close(self) -> None:
        self._is_closing = True
        if hasattr(self, "_router"):
            self._router.join()
        for descriptor in self._devices.values():
            os.close(descriptor)
        for holder in self._holders:
            holder.kill()
            holder.wait()


def _open_device(name: str, pid: int | None = None) -> int:
    """A new TUN device in the namespace of a process. It is gone when the descriptor is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open("rb") as own, contextlib.ExitStack() as stack:
        if pid is not None:
            other = stack.enter_context(Path(f"/proc/{pid}/ns/net").open("rb"))
            assert libc.setns(other.fileno(), _CLONE_NEWNET) == 0, "setns failed"
        try:
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
        finally:
            assert libc.setns(own.fileno(), _CLONE_NEWNET) == 0, "setns failed"
    return descriptor


def _packets(descriptor: int) -> Iterator[bytes]:
    """What the device has, IPv4 only."""
    while True:
        try:
            packet = os.read(descriptor, _PACKET_BYTES_MAX + 100)
        except BlockingIOError:
            return
        if packet[0] >> 4 == 4:
            yield packet


def _device_commands(name: str, address: int) -> str:
    return (
        f"ip address add {_text(address)}/26 dev {name} && ip link set {name} mtu {_PACKET_BYTES_MAX} txqueuelen 10000"
        f" && ip link set {name} up"
    )


def _run(script: str, prefix: Sequence[str] = ()) -> None:
    done = subprocess.run([*prefix, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}: {done.stderr}"


def _text(address: int) -> str:
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")
