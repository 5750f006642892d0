"""One worker process: `python -m postroad.runtime.worker <role> <listener> <heartbeat>`, two descriptors, of the supervisor."""

import asyncio
import gc
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from postroad.container import Role, running_node
from postroad.http.connection import RequestLimits
from postroad.http.server import Server
from postroad.http.tls import TlsCertificate
from postroad.jetstream.store_sync import STREAMS_OPEN_MAX, StoreSyncFailed
from postroad.kernel.buffered_metrics import start_flusher
from postroad.logs import configure_logging
from postroad.runtime.failed_disk import EXIT_CODE
from postroad.runtime.watchdog import send_heartbeats
from postroad.settings import Settings, load_settings

_RESERVED_DESCRIPTORS = 64  # for the engine, other systems, files, and connections that are being refused
_SYNC_DESCRIPTORS = 2 * STREAMS_OPEN_MAX  # for the files that group sync keeps open


def _tune_garbage_collector() -> None:
    """Exclude the objects of the start-up from collection, and collect rarely: requests leave no reference cycles.

    With Python's default thresholds the collector took a tenth of the processor time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _connections_max(settings: Settings) -> int:
    """Client connections for which the process has descriptors. At the limit of descriptors it could not reconnect to the engine,
    and the event loop could stop listening for good."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = _RESERVED_DESCRIPTORS + (_SYNC_DESCRIPTORS if settings.has_group_sync else 0)
    return max(1, limit - len(os.listdir("/dev/fd")) - reserved)  # noqa: PTH208  # no paths are needed


async def run(settings: Settings, role: Role, listener: socket.socket, heartbeat: int) -> None:
    beating = asyncio.create_task(send_heartbeats(heartbeat, settings.watchdog_seconds))
    try:
        await _serve(settings, role, listener)
    finally:
        beating.cancel()


async def _serve(settings: Settings, role: Role, listener: socket.socket) -> None:
    async with running_node(settings, role) as node:
        _tune_garbage_collector()
        limits = RequestLimits(
            settings.header_bytes_max,
            settings.header_seconds_max,
            settings.body_seconds_max,
            settings.write_timeout_seconds,
            settings.keepalive_seconds,
            _connections_max(settings),
        )
        async with _tls(settings) as certificate:
            server = Server(node.app, limits, stop_seconds=settings.stop_seconds, certificate=certificate)
            await server.serve(sockets=[listener])


@asynccontextmanager
async def _tls(settings: Settings) -> AsyncIterator[TlsCertificate | None]:
    """The certificate of the settings, which is reloaded when it changes; None without one."""
    if settings.tls_cert is None or settings.tls_key is None:
        yield None
        return
    certificate = TlsCertificate(settings.tls_cert, settings.tls_key)
    watching = asyncio.create_task(certificate.watch(settings.tls_reload_seconds))
    try:
        yield certificate
    finally:
        watching.cancel()


def main() -> None:
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    start_flusher()
    role, listener, heartbeat = Role(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    is_disk_failed = False
    try:
        uvloop.run(run(settings, role, socket.socket(fileno=listener), heartbeat))
    except* StoreSyncFailed:
        is_disk_failed = True
    if is_disk_failed:  # an exception of its own would be wrapped by `except*`
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
