from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from postroad.kernel.errors import EngineRefused
from postroad.runtime.sync_check import check_sync
from postroad.settings import Secret, Settings

StartMonitor = Callable[[Mapping[str, object]], Awaitable[str]]


@pytest.fixture
async def start_monitor() -> AsyncIterator[StartMonitor]:
    """Starts a server with the monitoring endpoint of nats-server, as far as it is read."""
    runners: list[web.AppRunner] = []

    async def start(config: Mapping[str, object]) -> str:
        async def jsz(_request: web.Request) -> web.Response:
            return web.json_response({"server_id": "x", "config": config})

        app = web.Application()
        app.router.add_get("/jsz", jsz)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


ALWAYS = {"sync_interval": 120_000_000_000, "sync_always": True}
INTERVAL = {"sync_interval": 120_000_000_000}


async def _warnings(monitor_url: str | None, **more: object) -> list[str]:
    settings = Settings.of(nats_url=Secret("nats://n1"), nats_monitor_url=monitor_url, **more)
    with capture_logs() as logs:
        await check_sync(settings)
    return [str(entry["problems"]) for entry in logs if entry["log_level"] == "warning"]


async def test_a_server_that_syncs_each_write_is_accepted(start_monitor: StartMonitor) -> None:
    assert not await _warnings(await start_monitor(ALWAYS), nats_sync_check="refuse")


async def test_a_server_that_syncs_periodically_is_reported(start_monitor: StartMonitor) -> None:
    [warning] = await _warnings(await start_monitor(INTERVAL))
    assert "sync_interval: 120s" in warning


async def test_one_of_several_servers_is_enough(start_monitor: StartMonitor) -> None:
    assert await _warnings(f"{await start_monitor(ALWAYS)}, {await start_monitor(INTERVAL)}")


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1"])
async def test_an_unreadable_configuration_is_reported(url: str | None) -> None:
    [warning] = await _warnings(url)
    assert "cannot be read" in warning


async def test_the_start_can_be_refused(start_monitor: StartMonitor) -> None:
    with pytest.raises(EngineRefused, match="sync_interval: 120s"):
        await _warnings(await start_monitor(INTERVAL), nats_sync_check="refuse")


async def test_streams_with_replicas_are_not_refused(start_monitor: StartMonitor) -> None:
    assert not await _warnings(await start_monitor(INTERVAL), nats_sync_check="refuse", replicas=3)
