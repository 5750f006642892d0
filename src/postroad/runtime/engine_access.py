"""Access of commands to the engine: a running one, or the data directory of a stopped Postroad."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from postroad.container import connection_settings, group_sync
from postroad.jetstream import kernel_aio
from postroad.jetstream.connection import Connection
from postroad.kernel.errors import DataDirectoryInUse, PostroadError
from postroad.runtime.embedded_server import EmbeddedServer, with_running_engine
from postroad.runtime.process_supervisor import SupervisedProcess, supervised
from postroad.runtime.supervisor import server_settings, store_monitor, with_store
from postroad.settings import Secret, Settings


@asynccontextmanager
async def engine_access(settings: Settings, name: str, *, restores: bool = False) -> AsyncIterator[Connection]:
    """A connection to the server of the settings, to the running embedded server, or to one that runs for the block only.

    `restores`: a data directory without data is no error, and a server of the block does not sync each message that it restores,
    so the block has to end with `store_sync.wait_filesystem`. Raises EngineUnavailable, and PostroadError if there is no data.
    """
    if settings.nats_url is None and not restores and not (settings.data_dir / "nats").exists():
        raise PostroadError(f"there is no data in {settings.data_dir}: use --data, or set POSTROAD_NATS_URL")
    stored = settings if settings.nats_url is not None else with_store(settings)
    if restores and kernel_aio.is_supported():
        stored = replace(stored, sync="group")
    server = EmbeddedServer(server_settings(stored))
    try:
        command = server.prepare() if settings.nats_url is None else None
    except DataDirectoryInUse:
        command = None
    if command is None:
        running = with_running_engine(settings)
        connection = Connection(connection_settings(running, name))
        await connection.open(deadline=10)
        try:
            async with group_sync(running, connection):
                yield connection
        finally:
            await connection.close()
        return
    try:
        monitor = store_monitor(settings)
        await asyncio.to_thread(monitor.check_blocks)
        embedded = replace(stored, nats_url=Secret(server.url), nats_nkey=server.nkey_file)
        connection = Connection(connection_settings(embedded, name))
        async with (
            supervised(SupervisedProcess(command, before_start=monitor.scan)),
            monitor.running(connection, lambda _count: None),
            group_sync(embedded, connection),
        ):
            yield connection
        monitor.record_stop()
    finally:
        server.release()
