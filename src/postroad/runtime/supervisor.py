"""`postroad up` and `postroad serve`: a small process that starts, restarts and stops the others."""

import asyncio
import contextlib
import importlib.util
import secrets
import shutil
import signal
import socket
import ssl
import sys
import tomllib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from prometheus_client.multiprocess import mark_process_dead

from postroad.access.aws_keys import new_secret
from postroad.access.capability import AccessCapability
from postroad.access.identity_cache import DEFAULT_TENANT
from postroad.access.keys import PLATFORM_PREFIX, TENANT_PREFIX, key_id_of, new_key
from postroad.access.records import AWS_PREFIX
from postroad.access.settings import AccessSettings
from postroad.access.web_sessions import SIGN_IN_LINK, SignInLinks, link_url, text_id_of
from postroad.container import Role, build, connection_settings, group_sync, platform_keys, prepare_engine, running_platform
from postroad.crypto.signing import Signer
from postroad.http.tls import TlsCertificate
from postroad.jetstream.connection import Connection
from postroad.jetstream.storage_budget import default_reserve
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import DiskFailed, PostroadError
from postroad.regions.settings import RegionsSettings
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings, default_store_bytes, raise_descriptor_limit
from postroad.runtime.failed_disk import EXIT_CODE, forget_cached_pages
from postroad.runtime.metrics_directory import SupervisorMetrics, metrics_directory
from postroad.runtime.private_files import write_private
from postroad.runtime.process_supervisor import Command, SupervisedProcess, running, supervised
from postroad.runtime.store_monitor import StoreMonitor
from postroad.runtime.store_watch import watch_store
from postroad.runtime.sync_check import check_sync
from postroad.runtime.sync_mode import choose_sync
from postroad.runtime.watchdog import Watchdog
from postroad.settings import Secret, Settings

log = structlog.get_logger("postroad")


@dataclass(frozen=True, slots=True)
class StartupInfo:
    """For the banner: the URL, the engine, the data directory, and the credentials, which are new on the first start.

    `console_url` signs a browser in as the platform admin, once. None if this process does not have that key, or if other
    machines can reach the gateway and may read the output: then `postroad console` prints a link.
    """

    url: str
    engine: str
    data_dir: Path
    credentials: dict[str, str]
    is_first_start: bool
    console_url: str | None = None


Announce = Callable[[StartupInfo], None]
T = TypeVar("T")

_WATCHDOG_START_SECONDS = 60.0  # until the event loop of a worker runs: imports on a slow disk or a busy machine
_DAMAGE_METRIC = ("postroad_store_damage", "Damage reports of the embedded server's store that were not accepted yet.")
_PIPELINE_STOP_SECONDS = 8.0  # an interrupted batch is repeated
_LINK_SECONDS = 3600
_LOCAL = ("127.0.0.1", "::1")
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # the address to reach a socket that listens on all


async def up(settings: Settings, announce: Announce) -> None:
    """Run the engine, unless POSTROAD_NATS_URL names one, and workers of all roles, until a signal arrives."""
    settings = with_platform_key(settings)
    if settings.nats_url is not None:
        await serve(settings, Role.ALL, announce)
        return
    settings = with_store(settings)
    server = EmbeddedServer(server_settings(settings))
    command = server.prepare()
    try:
        monitor = store_monitor(settings)
        await asyncio.to_thread(monitor.check_blocks)
        process = SupervisedProcess(command, before_start=monitor.scan)
        async with supervised(process), running(watch_store(process, server, _reserve_of(settings))):
            engine = f"nats-server (child), sync {settings.sync}"
            embedded = replace(settings, nats_url=Secret(server.url), nats_nkey=server.nkey_file)
            await _serve(embedded, Role.ALL, announce, engine, monitor)
        monitor.record_stop()
    except DiskFailed:
        await asyncio.to_thread(forget_cached_pages, server.store_dir)
        raise
    finally:
        server.release()


async def serve(settings: Settings, role: Role, announce: Announce) -> None:
    """Run workers of one role on the engine that POSTROAD_NATS_URL names, until a signal arrives."""
    connection_settings(settings, "check")  # reports missing settings here, and not in every worker
    platform_keys(settings)
    await check_sync(settings)
    settings = replace(settings, sync="always" if settings.sync in ("auto", "group") else settings.sync)
    await _serve(settings, role, announce, "POSTROAD_NATS_URL")


async def _serve(settings: Settings, role: Role, announce: Announce, engine: str, monitor: StoreMonitor | None = None) -> None:
    stop = _stop_signal()
    failures: list[DiskFailed] = []

    def check_exit_code(code: int) -> None:
        if code == EXIT_CODE:
            failures.append(
                DiskFailed("the store could not be synced: check the disk, then start again and run `postroad check`")
            )
            stop.set()

    probe_context = _probe_context(settings)
    raise_descriptor_limit()
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    settings = replace(settings, port=port)
    try:
        async with contextlib.AsyncExitStack() as stack:
            metrics_dir = stack.enter_context(metrics_directory())
            metrics = stack.enter_context(contextlib.closing(SupervisorMetrics(metrics_dir)))
            if monitor is not None:
                connection = Connection(connection_settings(settings, "postroad-monitor"))
                await stack.enter_async_context(group_sync(settings, connection))
                monitoring = monitor.running(connection, partial(metrics.set, *_DAMAGE_METRIC))
                await _unless_stopped(stop, stack.enter_async_context(monitoring))
            credentials, is_first = await _unless_stopped(stop, _first_start(settings))
            for number, worker_role in enumerate(_worker_roles(role, settings.workers)):
                # Background processes do not serve the shared port: their work and the requests must not delay each other.
                is_background = role is Role.ALL and worker_role is not Role.GATEWAY
                own = stack.enter_context(_listen("127.0.0.1", 0)) if is_background else listener
                watchdog = stack.enter_context(contextlib.closing(Watchdog(settings.watchdog_seconds, _WATCHDOG_START_SECONDS)))
                command = _worker_command(settings, f"worker-{number}", worker_role, own, watchdog, metrics_dir)
                worker = SupervisedProcess(
                    command,
                    stop_seconds=settings.stop_seconds + 1.7,
                    watchdog=watchdog,
                    on_end=_record_end(metrics, metrics_dir, command.name),
                    on_exit_code=check_exit_code,
                )
                await stack.enter_async_context(supervised(worker))
            await _unless_stopped(stop, _wait_ready(_LOOPBACK.get(host, host), port, probe_context))
            scheme = "http" if probe_context is None else "https"
            url = f"{scheme}://{'[' + host + ']' if ':' in host else host}:{port}"
            pipeline = _pipeline_command(settings) if role is Role.ALL and settings.pipeline else None
            if pipeline is not None:
                await stack.enter_async_context(
                    supervised(SupervisedProcess(pipeline, backoff_max_seconds=60.0, stop_seconds=_PIPELINE_STOP_SECONDS))
                )
            console_url = _console_url(settings, credentials, url, is_local=host in _LOCAL or sys.stdout.isatty())
            announce(StartupInfo(url, engine, settings.data_dir.resolve(), credentials, is_first, console_url))
            await stop.wait()
    except _Stopped:
        pass
    finally:
        listener.close()
    if failures:
        raise failures[0]


def _worker_roles(role: Role, workers: int) -> list[Role]:
    """All roles together are gateways, and a process each for control and delivery: slow endpoints delay no background job."""
    return [Role.GATEWAY] * workers + [Role.CONTROL, Role.DELIVERY] if role is Role.ALL else [role] * workers


class _Stopped(Exception):
    """A signal arrived during the start."""


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T:
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _Stopped
        return working.result()
    finally:
        working.cancel()
        stopping.cancel()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def _probe_context(settings: Settings) -> ssl.SSLContext | None:
    """For the supervisor's own probe of the port, None without TLS. The certificate is checked here, once, and not by the probe:
    its names need not include the address. Raises CertificateInvalid."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    TlsCertificate(settings.tls_cert, settings.tls_key)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _listen(host: str, port: int) -> socket.socket:
    """The socket that workers share: while they restart, connections wait in its queue instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise PostroadError(f"cannot listen on {host}:{port}: {exc.strerror}. Set POSTROAD_PORT to use another port") from exc
    listener.listen(4096)
    return listener


def store_monitor(settings: Settings) -> StoreMonitor:
    return StoreMonitor(
        settings.data_dir, interval_seconds=settings.integrity_seconds, is_encrypted=settings.encryption_key is not None
    )


def server_settings(settings: Settings) -> EmbeddedServerSettings:
    return EmbeddedServerSettings(
        data_dir=settings.data_dir.resolve(),
        port=settings.nats_port,
        sync=settings.sync,
        encryption_key=settings.encryption_key.reveal() if settings.encryption_key else None,
        store_bytes_max=settings.store_bytes_max,
        region=settings.section(RegionsSettings).region,
    )


def _record_end(metrics: SupervisorMetrics, metrics_dir: Path, name: str) -> Callable[[int, bool], None]:
    """For `SupervisedProcess.on_end`: count the restart, and remove the gauges of the process that ended."""

    def record(pid: int, is_hung: bool) -> None:
        cause = "hung" if is_hung else "ended"
        metrics.increment("postroad_worker_restarts", "Workers restarted, by cause.", worker=name, cause=cause)
        mark_process_dead(pid, str(metrics_dir))  # type: ignore[no-untyped-call]

    return record


def _worker_command(
    settings: Settings, name: str, role: Role, listener: socket.socket, watchdog: Watchdog, metrics_dir: Path
) -> Command:
    env = {"POSTROAD_STORE_BYTES_MAX": str(settings.store_bytes_max)}
    env |= {"POSTROAD_HOST": settings.host, "POSTROAD_PORT": str(settings.port)}  # those of the gateways, in every role
    env |= {"POSTROAD_DATA_DIR": str(settings.data_dir), "POSTROAD_OPEN": str(settings.section(AccessSettings).open).lower()}
    env |= _engine_environment(settings)
    if settings.platform_key is not None:
        env["POSTROAD_PLATFORM_KEY"] = settings.platform_key.reveal()
    env |= {"POSTROAD_METRICS_DIR": str(metrics_dir), "PROMETHEUS_MULTIPROC_DIR": str(metrics_dir)}
    descriptors = (listener.fileno(), watchdog.descriptor)
    argv = (sys.executable, "-m", "postroad.runtime.worker", role.value, *map(str, descriptors))
    return Command(name, argv, env, descriptors)


def _engine_environment(settings: Settings) -> dict[str, str]:
    """The engine's address and nkey, its store and how it is synced, which `up` chooses for the embedded server."""
    given = {"POSTROAD_NATS_URL": settings.nats_url and settings.nats_url.reveal(), "POSTROAD_NATS_NKEY": settings.nats_nkey}
    given |= {"POSTROAD_STORE_DIR": settings.store_dir, "POSTROAD_SYNC": settings.sync}
    return {name: str(value) for name, value in given.items() if value is not None}


def _pipeline_command(settings: Settings) -> Command | None:
    """The data pipeline, at low priority. None if Spark cannot run here; nothing else depends on it."""
    missing = next((requirement for requirement, is_met in _pipeline_requirements() if not is_met), None)
    if missing is not None:
        log.warning("pipeline_off", missing=missing)
        return None
    env = {"POSTROAD_DATA_DIR": str(settings.data_dir), "POSTROAD_PIPELINE_SECONDS": str(settings.pipeline_seconds)}
    env |= _engine_environment(settings)
    argv = ("nice", "-n", str(settings.pipeline_nice), sys.executable, "-m", "postroad", "pipeline", "run", "--quiet")
    return Command("pipeline", argv, env)


def _pipeline_requirements() -> list[tuple[str, bool]]:
    return [
        ("postroad[pipeline]", all(importlib.util.find_spec(name) is not None for name in ("pyspark", "spark_jetstream"))),
        ("java", shutil.which("java") is not None),
    ]


_CREDENTIALS = ("tenant_key", "admin_key", "aws_access_key_id", "aws_secret_access_key")


async def _first_start(settings: Settings) -> tuple[dict[str, str], bool]:
    """Prepare the engine; on a fresh one create the first tenant and keys. The operator's copy is written first."""
    async with running_platform(settings, "postroad-setup") as platform:
        await prepare_engine(platform)
        build(platform)
        access = platform.use(AccessCapability)
        if await platform.identities.tenant(DEFAULT_TENANT) is not None:
            return _read_credentials(settings.data_dir), False
        credentials = _read_credentials(settings.data_dir) or write_credentials(settings.data_dir)
        secret, key_id = credentials.get("aws_secret_access_key"), key_id_of(credentials["tenant_key"]) or ""
        aws = (access.aws_keys.encrypted(key_id, secret, platform.clock()),) if secret else ()
        await access.tenants.create_default(aws, tenant_key=credentials["tenant_key"], admin_key=credentials["admin_key"])
        return credentials, True


def _console_url(settings: Settings, credentials: dict[str, str], url: str, *, is_local: bool) -> str | None:
    """A sign-in link for the platform admin key."""
    admin_key = credentials.get("admin_key")
    key_id = key_id_of(admin_key) if admin_key else None
    if admin_key is None or key_id is None or not is_local:
        return None
    links = SignInLinks(Signer(platform_keys(settings), SIGN_IN_LINK), now_ms)
    code = links.issue(key_id, text_id_of(admin_key), now_ms() + _LINK_SECONDS * 1000)
    base = settings.public_url or url
    for every_address, loopback in _LOOPBACK.items():
        base = base.replace(f"//{every_address}:", f"//{loopback}:").replace(f"//[{every_address}]:", f"//[{loopback}]:")
    return link_url(base, code)


def _read_credentials(data_dir: Path) -> dict[str, str]:
    path = data_dir / "credentials.toml"
    if not path.exists():
        return {}
    stored = tomllib.loads(path.read_text())
    return {name: stored[name] for name in _CREDENTIALS if name in stored}


def write_credentials(data_dir: Path) -> dict[str, str]:
    tenant_key = new_key(TENANT_PREFIX)
    credentials = {
        "tenant_key": tenant_key,
        "admin_key": new_key(PLATFORM_PREFIX),
        "aws_access_key_id": f"{AWS_PREFIX}{key_id_of(tenant_key)}",
        "aws_secret_access_key": new_secret(),
    }
    text = "# The operator's copy; Postroad itself stores hashes of keys and encrypted AWS secrets. Written on the first start.\n"
    write_private(data_dir / "credentials.toml", text + "".join(f'{name} = "{key}"\n' for name, key in credentials.items()))
    return credentials


def with_store(settings: Settings) -> Settings:
    """Add the directory of the embedded server's store, how it is synced, and its largest size, if that is not set."""
    directory = settings.data_dir.resolve() / "nats" / "jetstream"
    directory.mkdir(parents=True, exist_ok=True)
    return replace(
        settings,
        store_dir=directory,
        sync=choose_sync(settings.sync, directory),
        store_bytes_max=settings.store_bytes_max or default_store_bytes(directory),
    )


def _reserve_of(settings: Settings) -> int:
    return settings.store_reserve_bytes or default_reserve(settings.store_bytes_max)


def with_platform_key(settings: Settings) -> Settings:
    """Add the platform key, if it is not set, from `platform.key` in the data directory, which is created if missing."""
    if settings.platform_key is not None:
        return settings
    path = settings.data_dir / "platform.key"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48) + "\n")
    return replace(settings, platform_key=Secret(path.read_text().strip()))


async def _wait_ready(host: str, port: int, tls: ssl.SSLContext | None) -> None:
    """Wait until a worker is ready. There is no timeout, since workers that end are restarted without limit."""
    attempts = 0
    while not await _is_ready(host, port, tls):
        attempts += 1
        if attempts % 200 == 0:
            log.warning("not_ready_yet")
        await asyncio.sleep(0.05)


async def _is_ready(host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    try:
        async with asyncio.timeout(3):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).split(b" ")[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
