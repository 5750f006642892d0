"""A cluster of nats-servers, usually three, on loopback or in a `Network`, and Postroad processes on it. All can be killed,
paused and restarted."""

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.runtime.embedded_server import find_server, free_port
from postroad.runtime.process_supervisor import _die_with_parent
from tests.installation import Installation
from tests.network import LOOPBACK, Host
from tests.waiting import eventually

NODES = 3
PLATFORM_KEY = "the platform key of a cluster in tests; long enough"
_ROUTE_LIMITS = 'ping_interval: "2s", ping_max: 2, write_deadline: "2s"'  # as docs/running.md recommends
_USER, _PASSWORD = "postroad", "only-on-loopback"


class Node:
    """One server of the cluster, with a port and a store that survive its process."""

    def __init__(self, name: str, home: Path, host: Host = LOOPBACK, tags: Sequence[str] = ()) -> None:
        self.name, self.home, self.host, self.tags = name, home, host, tags
        self.port, self.route_port, self._health_port = free_port(), free_port(), free_port()
        self.url = f"nats://{_USER}:{_PASSWORD}@{host.address}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    def configure(self, nodes: "list[Node]", route_options: str = _ROUTE_LIMITS) -> None:
        """Like the configuration of the embedded server, with routes to the other nodes."""
        self.home.mkdir(parents=True)
        address = self.host.address
        routes = ", ".join(f'"nats-route://{node.host.address}:{node.route_port}"' for node in nodes)
        text = (
            f'listen: "{address}:{self.port}"\n'
            f'http: "{address}:{self._health_port}"\n'
            f'server_name: "{self.name}"\n'
            f"server_tags: {msgspec.json.encode(self.tags).decode()}\n"
            f'log_file: "{self.home / "nats.log"}"\n'
            f"max_payload: {8 * 1024 * 1024}\n"
            f'authorization {{ user: "{_USER}", password: "{_PASSWORD}", timeout: 5 }}\n'
            f'cluster {{ name: "tests", listen: "{address}:{self.route_port}", routes: [{routes}], {route_options} }}\n'
            f'jetstream {{ store_dir: "{self.home / "jetstream"}", sync_interval: "always" }}\n'
        )
        (self.home / "nats.conf").write_text(text)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, seconds: float = 60) -> None:
        """Return once it accepts connections; the cluster may not have a leader yet."""
        command = [*self.host.prefix, str(find_server()), "-c", str(self.home / "nats.conf")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent, env={}
        )
        deadline = time.monotonic() + seconds
        while not self._is_listening():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}: {self.log[-500:]}"
            assert time.monotonic() < deadline, f"{self.name} did not start: {self.log[-500:]}"
            time.sleep(0.01)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host.address, self.port)) == 0

    async def healthy(self, seconds: float = 60) -> None:
        """Return once all its replicas are current."""

        async def is_healthy() -> bool:
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://{self.host.address}:{self._health_port}/healthz") as answer,
                ):
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(is_healthy, seconds)

    async def client_names(self) -> list[str]:
        """The names of its connections."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.host.address}:{self._health_port}/connz") as answer,
        ):
            return [client.get("name", "") for client in (await answer.json())["connections"]]

    def kill(self) -> None:
        """Like kill -9."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.is_paused = False

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def stop(self, seconds: float = 30) -> None:
        """With SIGTERM: it transfers its leaderships first."""
        if self.process is None or self.process.poll() is not None:
            return
        if self.is_paused:
            self.resume()
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal(self, number: int) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    @property
    def log(self) -> str:
        path = self.home / "nats.log"
        return path.read_text(errors="replace") if path.exists() else ""


class _Leading(msgspec.Struct):
    leader: str = ""


class _Info(msgspec.Struct):
    cluster: _Leading


class Cluster:
    """The servers, and the Postroad installations that `gateway` adds."""

    def __init__(
        self,
        home: Path,
        hosts: Sequence[Host] = (LOOPBACK,) * NODES,
        tags: Sequence[Sequence[str]] | None = None,
        route_options: str = _ROUTE_LIMITS,
    ) -> None:
        """`tags`: those of each server."""
        self._home = home
        self.nodes = [
            Node(f"n{number}", home / f"n{number}", host, () if tags is None else tags[number - 1])
            for number, host in enumerate(hosts, 1)
        ]
        for node in self.nodes:
            node.configure(self.nodes, route_options)
        self.gateways: list[Installation] = []

    async def start(self) -> None:
        for node in self.nodes:
            node.start()
        await self.wait_ready()

    def end(self) -> None:
        for gateway in self.gateways:
            gateway.end()
        for node in self.nodes:
            node.kill()

    @property
    def url(self) -> str:
        """For POSTROAD_NATS_URL."""
        return ",".join(node.url for node in self.nodes)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def gateway(self, *arguments: str, **environment: str) -> Installation:
        """A Postroad on this cluster, not started yet; by default workers of all roles. All of them share a platform key."""
        home = self._home / f"gateway-{len(self.gateways) + 1}"
        home.mkdir()
        given = {"POSTROAD_NATS_URL": self.url, "POSTROAD_PLATFORM_KEY": PLATFORM_KEY, **environment}
        self.gateways.append(Installation(home, *arguments, **given))
        return self.gateways[-1]

    async def wait_ready(self, seconds: float = 120) -> None:
        """Return once the cluster has a leader and executes requests."""
        connection = await self.connection()
        try:
            await connection.call("INFO", timeout=seconds)
        finally:
            await connection.close()

    async def connection(self) -> Connection:
        opened = Connection(ConnectionSettings(tuple(node.url for node in self.nodes), name="tests"))
        await opened.open()
        return opened

    async def leader(self, stream: str, seconds: float = 60) -> Node:
        """The node that leads the stream at present."""
        connection = await self.connection()
        try:

            async def found() -> str:
                return msgspec.json.decode(
                    await connection.call(f"STREAM.INFO.{stream}", timeout=seconds), type=_Info
                ).cluster.leader

            return self.node(await eventually(found, seconds))
        finally:
            await connection.close()
