"""`make containers`: build the images and run deploy/compose.yaml with podman, kill and replace every container under load.

It needs root, podman, runc, netavark, aardvark-dns, iptables and mmdebstrap (all in Debian), podman-compose (PyPI) and some
minutes, so it is no part of `make test`. The base image is made of Debian's packages; Prometheus and nginx
come from there, too. Grafana is in no package.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from postroad.client import Postroad
from postroad.client.errors import AlreadySettled, LeaseExpired
from postroad.kernel.errors import PostroadError
from postroad.monitoring.alerts import ALERTS
from postroad.monitoring.dashboards import DASHBOARDS

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
ENGINES = ("nats-1", "nats-2", "nats-3")
PROCESSES = ("gateway-1", "gateway-2", "background-1", "background-2")
PEERS = ("proxy", "prometheus")
TOOLS = ("podman", "runc", "mmdebstrap", "podman-compose")
PEERS_IMAGE = """FROM localhost/postroad-base:latest
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light prometheus >/dev/null
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
"""
CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile=4096:4096", "nproc=8192:8192"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


ASK = """
import json, sys, urllib.parse, urllib.request
def ask(query):
    with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": query})) as answer:
        return len(json.load(answer)["data"]["result"])
print(json.dumps([ask(query) for query in json.loads(sys.argv[1])]))
"""


class Containers:
    """The containers of the compose file in a storage of their own below `home`."""

    def __init__(self, home: Path, port: int, *, with_pipeline: bool) -> None:
        self._home, self.url = home, f"http://127.0.0.1:{port}"
        self.services = (*ENGINES, *PROCESSES, *(("pipeline",) if with_pipeline else ()), *PEERS)
        home.mkdir(parents=True, exist_ok=True)
        (home / "containers.conf").write_text(CONTAINERS_CONF)
        (home / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{home}/graph"\nrunroot = "{home}/run"\n')
        self._environment: Mapping[str, str] = os.environ | {
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "POSTROAD_IMAGE": "localhost/postroad:latest",
            "POSTROAD_PIPELINE_IMAGE": "localhost/postroad-pipeline:latest",
            "PROXY_IMAGE": "localhost/peers:latest",
            "PROMETHEUS_IMAGE": "localhost/peers:latest",
            "POSTROAD_PORT": str(port),
        }

    def podman(self, *words: str, check: bool = True) -> str:
        found = subprocess.run(["podman", *words], env=self._environment, capture_output=True, text=True, check=False)
        if check and found.returncode:
            raise SystemExit(f"podman {' '.join(words)}: {found.stderr[-2000:]}")
        return found.stdout.strip()

    def compose(self, *words: str) -> None:
        command = ["podman-compose", "-f", str(COMPOSE_FILE), *words]
        found = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if found.returncode:
            raise SystemExit(f"{' '.join(command)}: {found.stderr[-4000:]}")

    def build(self) -> None:
        """Build the base from Debian's packages, then the images of the Dockerfile on it."""
        base = self._home / "base"
        base.mkdir(exist_ok=True)
        packages = "--include=python3,python3-venv,ca-certificates"
        if not self.podman("images", "-q", "localhost/postroad-base:latest"):
            subprocess.run(["mmdebstrap", "--variant=minbase", packages, "bookworm", str(base / "root.tar")], check=True)
            # Registries may be reached through a proxy with a certificate of its own.
            shutil.copy("/etc/ssl/certs/ca-certificates.crt", base)
            (base / "Dockerfile").write_text(
                "FROM scratch\nADD root.tar /\nCOPY ca-certificates.crt /etc/ssl/certs/\n"
                "ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt\n"
            )
            self.podman("build", "-q", "-t", "postroad-base:latest", str(base))
        peers = self._home / "peers"
        peers.mkdir(exist_ok=True)
        (peers / "Dockerfile").write_text(PEERS_IMAGE)
        self.podman("build", "-q", "--network", "host", "-t", "peers:latest", str(peers))
        for target in ("postroad", *(("postroad-pipeline",) if "pipeline" in self.services else ())):
            options = ["--network", "host", "--build-arg", "BASE=localhost/postroad-base:latest", "--target", target]
            self.podman("build", "-q", *options, "-f", str(ROOT / "deploy/Dockerfile"), "-t", f"{target}:latest", str(ROOT))

    @contextmanager
    def up(self) -> Iterator[None]:
        """Start all services but Grafana. Podman runs health checks with systemd, so they are triggered here."""
        if not (ROOT / "deploy/secrets/nats-auth.conf").exists():
            subprocess.run([sys.executable, "-m", "postroad", "init", "--out", str(ROOT / "deploy/secrets")], check=True)
        stopped = threading.Event()
        checks = threading.Thread(target=self._trigger_health_checks, args=(stopped,))
        self._remove_networks()
        try:
            self.compose("up", "-d", *self.services, "apply")
            checks.start()
            yield
        finally:
            stopped.set()
            if checks.is_alive():
                checks.join()
            self.compose("down", "-v")
            self._remove_networks()

    def _remove_networks(self) -> None:
        """`podman-compose down` keeps them, with addresses of containers that were killed, which a later run could not use."""
        self.podman("network", "prune", "-f")

    def _trigger_health_checks(self, stopped: threading.Event) -> None:
        while not stopped.wait(2):
            for service in (*ENGINES, *PROCESSES):
                self.podman("healthcheck", "run", self.name(service), check=False)

    def name(self, service: str) -> str:
        return f"postroad_{service}_1"

    def wait_until_healthy(self, service: str, seconds: float = 180) -> float:
        """Return the seconds that it took. Services without a health check only have to run."""
        begin = time.monotonic()
        has_check = service in (*ENGINES, *PROCESSES)
        form = "{{.State.Status}} {{.State.Health.Status}}" if has_check else "{{.State.Status}}"
        wanted = "running healthy" if has_check else "running"
        while self.podman("inspect", "-f", form, self.name(service), check=False) != wanted:
            if time.monotonic() > begin + seconds:
                raise SystemExit(f"{service} is not healthy: {self.podman('logs', '--tail', '20', self.name(service))}")
            time.sleep(0.5)
        return time.monotonic() - begin

    def kill(self, service: str) -> None:
        """End the first process of the container from outside, as a crash does; the restart policy starts it again."""
        os.kill(int(self.podman("inspect", "-f", "{{.State.Pid}}", self.name(service))), signal.SIGKILL)

    def replace(self, service: str) -> None:
        """Stop with SIGTERM and start. `podman-compose --force-recreate` would replace all that depend on it, too."""
        self.podman("stop", self.name(service))
        self.podman("start", self.name(service))


class Load:
    """A client that publishes numbers and one that pulls and acknowledges them, until `stop`. Every error it meets is kept."""

    QUEUE = "containers"

    def __init__(self, url: str, key: str) -> None:
        self._clients = [Postroad(url, key, deadline=120) for _ in range(2)]
        self.published: set[int] = set()
        self.received: dict[int, int] = {}
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._clients[0].queues.put(self.QUEUE, visibility_timeout_ms=30_000)
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            try:
                self._clients[0].queues.publish(self.QUEUE, {"number": number}, idempotency_key=str(number))
            except PostroadError as fault:
                self.errors.append(f"publish: {fault}")
            else:
                self.published.add(number)

    def _consume(self) -> None:
        idle_since = time.monotonic()
        while not self._stopped.is_set() or (self._missing() and time.monotonic() < idle_since + 90):
            try:
                pulled = self._clients[1].queues.pull(self.QUEUE, max_messages=20, wait_ms=1000)
                for message in pulled.messages:
                    idle_since = time.monotonic()
                    number = message.payload["number"]
                    self.received[number] = self.received.get(number, 0) + 1
                    self._clients[1].queues.ack(self.QUEUE, message)
            except (LeaseExpired, AlreadySettled):
                continue  # delivered again, or the response to the first ack was lost: both are at least once
            except PostroadError as fault:
                self.errors.append(f"consume: {fault}")

    def _missing(self) -> set[int]:
        return self.published - set(self.received)

    def stop(self) -> str:
        """Return a summary. Raises SystemExit if an acknowledged message is missing or a client met an error."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        missing = self._missing()
        again = sum(times - 1 for times in self.received.values())
        if missing or self.errors:
            raise SystemExit(
                f"{len(missing)} of {len(self.published)} acknowledged messages are missing; errors: {self.errors[:5]}"
            )
        return f"{len(self.published)} published, none missing, {again} delivered again, no error"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("/var/tmp/postroad-containers"), help="images and volumes")
    parser.add_argument("--port", type=int, default=18480)
    parser.add_argument("--no-build", action="store_true", help="use the images of the last run")
    parser.add_argument("--pipeline", action="store_true", help="also build and run the pipeline's image: minutes more")
    options = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        raise SystemExit(f"needs root and {', '.join(TOOLS)}; missing: {', '.join(missing) or 'root'}")
    containers = Containers(options.home, options.port, with_pipeline=options.pipeline)
    if not options.no_build:
        containers.build()
    with containers.up():
        _try_all(containers)


def _try_all(containers: Containers) -> None:
    for service in containers.services:
        print(f"{service} is up after {containers.wait_until_healthy(service):.0f} s", flush=True)
    key = (ROOT / "deploy/secrets/tenant.key").read_text().strip()
    _verify(containers.url, key)
    sign_in(containers.url, key)
    print("the console signs in", flush=True)
    load = Load(containers.url, key)
    for action in (containers.kill, containers.replace):
        for service in containers.services:
            action(service)
            seconds = containers.wait_until_healthy(service)
            print(f"{action.__name__} {service}: back after {seconds:.1f} s, {len(load.published)} published", flush=True)
    _ask_prometheus(containers)
    print(load.stop(), flush=True)
    _verify(containers.url, key)


def _verify(url: str, key: str) -> None:
    _wait_until_ready(url)
    environment = os.environ | {"POSTROAD_URL": url, "POSTROAD_KEY": key}
    subprocess.run([sys.executable, "-m", "postroad", "verify"], check=True, env=environment)


def sign_in(url: str, key: str) -> None:
    """As a browser does: the console's page, its files, a session with a cookie, and one stream of live state."""
    page = _browse(f"{url}/queues", Accept="text/html")[0].decode()
    assets = re.findall(r"/(assets/[^\"]+\.(?:js|css))", page)
    if not assets:
        raise SystemExit("the image has no built console")
    for asset in assets:
        _browse(f"{url}/{asset}")
    _, cookie = _browse(f"{url}/v1/session", json.dumps({"key": key}).encode(), **{"Content-Type": "application/json"})
    session = cookie.partition(";")[0]
    identity = json.loads(_browse(f"{url}/v1/session", Cookie=session)[0])
    request = urllib.request.Request(f"{url}/v1/live?watch=queues", headers={"Cookie": session, "Sec-Fetch-Site": "same-origin"})
    with urllib.request.urlopen(request, timeout=30) as stream:  # the proxy must not wait for the end of the response
        begin = [stream.readline() for _ in range(3)]
    if b"event: snapshot\n" not in begin:
        raise SystemExit(f"the live state of {identity['keyName']} begins with {begin}, not with a snapshot")


def _browse(url: str, body: bytes | None = None, **headers: str) -> tuple[bytes, str]:
    """The body of the response and its cookie."""
    request = urllib.request.Request(url, body, headers | {"Sec-Fetch-Site": "same-origin"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read(), response.headers["Set-Cookie"] or ""


def _ask_prometheus(containers: Containers, seconds: float = 180) -> None:
    """Every panel and alert must have a value, some scrapes after the restarts, but those of what does not run here."""
    panels = [panel.query for dashboard in DASHBOARDS for panel in dashboard.panels]
    queries = [_with_choices(query) for query in (*panels, *(alert.value for alert in ALERTS))]
    deadline = time.monotonic() + seconds
    while True:
        answers = json.loads(containers.podman("exec", containers.name("prometheus"), "python3", "-c", ASK, json.dumps(queries)))
        empty = [query for query, series in zip(queries, answers, strict=True) if not series]
        unexpected = [query for query in empty if not re.search(r"postroad_(pipeline|commands|route|rabbitmq)_", query)]
        if not unexpected:
            print(f"Prometheus has values for {len(queries) - len(empty)} of {len(queries)} queries", flush=True)
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"Prometheus has no values for {unexpected}")
        time.sleep(5)


def _with_choices(query: str) -> str:
    return query.replace("$__rate_interval", "1m").replace("$tenant", ".*").replace("$queue", ".*")


def _wait_until_ready(url: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
        except OSError as fault:
            if time.monotonic() > deadline:
                raise SystemExit(f"{url} is not ready: {fault}") from fault
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    main()
