"""Cost of routing: a plain ASGI function, Postroad's app and Starlette, each returning the same JSON behind uvicorn.

.venv/bin/python -m benchmarks.routing [seconds per measurement]

Each app runs in a process of its own and has the same forty routes; the request is `POST /v1/queues/orders/messages` with a body
that is parsed and answered. The rounds are interleaved, so that other load affects all three.
"""

import subprocess
import sys
import time
from typing import Any

import msgspec
import uvicorn

from benchmarks.harness import table, wrk
from postroad.container import app_settings
from postroad.http.app import App
from postroad.http.request import Request, RevocationWatch
from postroad.http.response import Response
from postroad.http.routing import Route, Router
from postroad.kernel.identity import Caller
from postroad.runtime.embedded_server import free_port
from postroad.settings import Settings

NOUNS = ("queues", "topics", "streams", "buckets", "services", "routes", "grants", "quotas", "bans", "alerts")


class Body(msgspec.Struct):
    payload: msgspec.Raw


class Answer(msgspec.Struct):
    size: int


decode = msgspec.json.Decoder(Body).decode
encode = msgspec.json.Encoder().encode


async def bare_app(_scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = encode(Answer(len(bytes(decode(message["body"]).payload))))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class UnusedAuthenticator:
    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, _request: Request, _route: Route) -> Caller:
        raise AssertionError

    def watch(self, caller: Caller) -> RevocationWatch:
        raise AssertionError


def postroad_app() -> App:
    async def handle(request: Request) -> Response:
        return Response(Answer(len(bytes(request.body.payload))))

    routes = []
    for noun in NOUNS:
        for method, path in (
            ("GET", "/v1/{}"),
            ("GET", "/v1/{}/{{name}}"),
            ("PUT", "/v1/{}/{{name}}"),
            ("POST", "/v1/{}/{{name}}/messages"),
        ):
            routes.append(Route(method, path.format(noun), handle, None, "", "", body=Body, response=Answer))
    return App(Router(routes), UnusedAuthenticator(), app_settings(Settings()))


def starlette_app() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request as StarletteRequest
    from starlette.responses import Response
    from starlette.routing import Route as StarletteRoute

    async def handle(request: StarletteRequest) -> Response:
        return Response(encode(Answer(len(bytes(decode(await request.body()).payload)))), media_type="application/json")

    routes = []
    for noun in NOUNS:
        for method, path in (
            ("GET", "/v1/{}"),
            ("GET", "/v1/{}/{{name}}"),
            ("PUT", "/v1/{}/{{name}}"),
            ("POST", "/v1/{}/{{name}}/messages"),
        ):
            routes.append(StarletteRoute(path.format(noun), handle, methods=[method]))
    return Starlette(routes=routes)


APPS = {"bare ASGI": lambda: bare_app, "Postroad's app": postroad_app, "Starlette": starlette_app}
SCRIPT = 'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = \'{"payload":{"n":1}}\'\n'


def serve(name: str, port: int) -> None:
    uvicorn.run(APPS[name](), port=port, log_level="error", lifespan="off", access_log=False, proxy_headers=False)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    ports = {name: free_port() for name in APPS}
    servers = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.routing", "serve", name, str(port)]) for name, port in ports.items()
    ]
    best: dict[str, float] = dict.fromkeys(APPS, 0.0)
    try:
        time.sleep(2)
        for _ in range(3):
            for name, port in ports.items():
                load = wrk(f"http://127.0.0.1:{port}/v1/queues/orders/messages", 64, seconds, SCRIPT)
                best[name] = max(best[name], load.per_second)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    bare = best["bare ASGI"]
    print(
        table(
            ["app", "best of 3, requests/s", "of bare ASGI"],
            [[name, f"{rate:,.0f}", f"{rate / bare:.2f}"] for name, rate in best.items()],
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
