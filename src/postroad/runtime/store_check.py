"""`postroad check`: read every message of every stream, of a running engine or of the data directory of a stopped one."""

from collections.abc import Callable

from postroad.jetstream.integrity import StreamCheck, check_stream, stream_records
from postroad.runtime.engine_access import engine_access
from postroad.settings import Settings


async def check_store(settings: Settings, on_check: Callable[[StreamCheck], None]) -> None:
    """Check each stream. Raises EngineUnavailable, and PostroadError if there is no data."""
    async with engine_access(settings, "postroad-check") as connection:
        for name in sorted(await stream_records(connection)):
            checked = await check_stream(connection, name)
            if checked is not None:  # else it was deleted meanwhile
                on_check(checked)
