"""`postroad check`: read every message of every stream, of a running engine or of the data directory of a stopped one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from postroad.container import connection_settings
from postroad.jetstream.connection import Connection
from postroad.jetstream.integrity import StreamCheck, check_stream, stream_records
from postroad.kernel.errors import DataDirectoryInUse, PostroadError
from postroad.runtime.embedded_server import EmbeddedServer, with_running_engine
from postroad.runtime.process_supervisor import SupervisedProcess, supervised
from postroad.runtime.supervisor import server_settings, store_monitor, with_store
from postroad.settings import Secret, Settings


async def check_store(settings: Settings, on_check: Callable[[StreamCheck], None]) -> None:
    """Check each stream. Raises EngineUnavailable, and PostroadError if there is no data."""
    async with _engine(settings) as connection:
        for name in sorted(await stream_records(connection)):
            checked = await check_stream(connection, name)
            if checked is not None:  # else it was deleted meanwhile
                on_check(checked)


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[Connection]:
    """A connection to the server of the settings, to the running embedded server, or to one that runs for the block only."""
    if settings.nats_url is None and not (settings.data_dir / "nats").exists():
        raise PostroadError(f"there is no data in {settings.data_dir}: use --data, or set POSTROAD_NATS_URL")
    server = EmbeddedServer(server_settings(with_store(settings)))
    try:
        command = server.prepare() if settings.nats_url is None else None
    except DataDirectoryInUse:
        command = None
    if command is None:
        connection = Connection(connection_settings(with_running_engine(settings), "postroad-check"))
        await connection.open(deadline=10)
        try:
            yield connection
        finally:
            await connection.close()
        return
    try:
        monitor = store_monitor(settings)
        await asyncio.to_thread(monitor.check_blocks)
        embedded = replace(settings, nats_url=Secret(server.url), nats_nkey=server.nkey_file)
        connection = Connection(connection_settings(embedded, "postroad-check"))
        async with (
            supervised(SupervisedProcess(command, before_start=monitor.scan)),
            monitor.running(connection, lambda _count: None),
        ):
            yield connection
        monitor.record_stop()
    finally:
        server.release()
