"""One worker process: `python -m postroad.worker <role> <listening descriptor>`, started by the supervisor."""

import gc
import socket
import sys

import uvicorn
import uvloop

from postroad.assembly import Role, running_node
from postroad.http.app import App
from postroad.logs import set_up_logs
from postroad.settings import Settings, load_settings


class _Server(uvicorn.Server):
    """Tells the app before it waits for open connections: long polls and live readers end then, and not at the time-out."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.drain()
        await super().shutdown(sockets)


def _calm_garbage_collector() -> None:
    """What is there after the start stays; what requests leave behind is freed by reference counts. Looking for cycles every
    few hundred objects, Python's default, cost a tenth of the processor under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


async def run(settings: Settings, role: Role, listener: socket.socket) -> None:
    async with running_node(settings, role) as node:
        _calm_garbage_collector()
        config = uvicorn.Config(
            node.app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.stop_seconds)),
            backlog=4096,
        )
        await _Server(config, node.app).serve(sockets=[listener])


def main() -> None:
    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format)
    role, descriptor = Role(sys.argv[1]), int(sys.argv[2])
    uvloop.run(run(settings, role, socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
