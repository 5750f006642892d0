"""Check of an external NATS server: whether it fsyncs each write before it acknowledges it.

An ordinary account cannot read the server's configuration through NATS. Its monitoring endpoint has it.
"""

import httpx
import msgspec
import structlog

from postroad.kernel.errors import EngineRefused
from postroad.settings import Settings

log = structlog.get_logger("postroad")

_TIMEOUT_SECONDS = 3.0
_NANOSECONDS = 1_000_000_000


class _Config(msgspec.Struct):
    sync_interval: int = 0
    sync_always: bool = False


class _Jsz(msgspec.Struct):
    config: _Config


async def check_sync(settings: Settings) -> None:
    """Warn if a write to a single replica may be lost in a power failure. Raises EngineRefused if the settings say so."""
    urls = [url.strip() for url in (settings.nats_monitor_url or "").split(",") if url.strip()]
    problems = [problem for url in urls if (problem := await _problem(url)) is not None]
    if not urls:
        problems = ["`sync_interval` of the NATS server cannot be read: set POSTROAD_NATS_MONITOR_URL"]
    if not problems:
        return
    if settings.replica_count > 1:
        log.info("engine_sync_not_always", problems=problems, replicas=settings.replica_count)
        return
    if settings.nats_sync_check == "refuse":
        raise EngineRefused(f"streams have one replica, and a power failure may lose acknowledged writes: {'; '.join(problems)}")
    log.warning(
        "engine_sync_not_always", problems=problems, effect="a power failure of the NATS server may lose acknowledged writes"
    )


async def _problem(url: str) -> str | None:
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            response = await client.get(f"{url.rstrip('/')}/jsz")
        config = msgspec.json.decode(response.content, type=_Jsz).config
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError) as exc:
        return f"{url}/jsz cannot be read: {type(exc).__name__}"
    if config.sync_always:
        return None
    return f"{url} has `sync_interval: {config.sync_interval // _NANOSECONDS}s`: set it to `always`"
