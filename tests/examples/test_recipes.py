"""The recipes of `docs/recipes/` that surround Postroad: nginx and Caddy before it, a publisher in cron, an outbox in PostgreSQL.

Each runs with the real program. Those that forward deliveries are in `tests/subscriptions/test_recipes.py`.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import psycopg
import pytest

from postroad.runtime.embedded_server import free_port
from tests.gateway import Client, session
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = pytest.mark.engine
RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
ROWS = 1500  # three batches of the relay


def program(name: str, *places: str) -> str:
    """The path of a program; without it the test is skipped, but not where it could have been installed."""
    found = shutil.which(name) or next((place for place in places if Path(place).exists()), None)
    if found is None:
        assert os.getuid() != 0 or shutil.which("apt-get") is None, f"{name} is missing: sh scripts/setup-recipes"
        pytest.skip(f"{name} is missing: sh scripts/setup-recipes")
    return found


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("recipes"), POSTROAD_TRUSTED_PROXIES="127.0.0.1")
    try:
        yield await installation.start().ready()
    finally:
        installation.end()


@pytest.fixture
async def client(running: Installation) -> AsyncIterator[Client]:
    async with session() as opened:
        yield Client(running.url, opened, {"Authorization": f"Bearer {running.credentials['tenant_key']}"})


def _nginx(folder: Path, port: int, gateway: int) -> list[str]:
    recipe = (RECIPES / "nginx.conf").read_text().replace("listen 80;", f"listen 127.0.0.1:{port};")
    (folder / "postroad.conf").write_text(recipe.replace("127.0.0.1:8080", f"127.0.0.1:{gateway}"))
    places = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}"
        f"http {{ access_log off; {places} include {folder}/postroad.conf; }}"
    )
    return [program("nginx", "/usr/sbin/nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


def _caddy(folder: Path, port: int, gateway: int) -> list[str]:
    return [program("caddy"), "run", "--config", str(RECIPES / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(params=[_nginx, _caddy], ids=["nginx", "caddy"])
async def proxy(request: pytest.FixtureRequest, running: Installation, tmp_path: Path) -> AsyncIterator[Client]:
    """A client whose requests pass through the proxy."""
    port = free_port()
    command = request.param(tmp_path, port, running.port)
    environment = {
        **os.environ,
        "LISTEN": f"http://127.0.0.1:{port}",
        "GATEWAYS": f"127.0.0.1:{running.port}",
        "HOME": str(tmp_path),
    }
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  # it returns at once
    try:
        async with session() as opened:
            url = f"http://127.0.0.1:{port}"

            async def answers() -> bool:
                assert process.poll() is None
                try:
                    async with opened.get(f"{url}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(answers)
            yield Client(url, opened, {"Authorization": f"Bearer {running.credentials['tenant_key']}"})
    finally:
        process.terminate()
        process.wait()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"event: "):
            yield line.decode().removeprefix("event: ").strip()


async def test_events_pass_a_proxy_at_once(proxy: Client) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    (await proxy.put(f"/v1/topics/{topic}", {})).ok(201)
    async with proxy.session.get(f"{proxy.url}/v1/topics/{topic}/stream", headers=proxy.headers) as response:
        events = _events(response)
        assert await anext(events) == "ready"
        (await proxy.post(f"/v1/topics/{topic}/messages", {"subject": "eu", "payload": 1})).ok(201)
        assert await anext(events) == "message", "while the response is open"


async def test_websockets_pass_a_proxy(proxy: Client) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    (await proxy.put(f"/v1/topics/{topic}", {})).ok(201)
    async with proxy.session.ws_connect(f"{proxy.url}/v1/ws", headers=proxy.headers, protocols=["postroad.v1"]) as socket:
        await socket.send_json({"op": "subscribe", "ref": "1", "topic": topic})
        assert (await socket.receive_json())["op"] == "subscribed"
        (await proxy.post(f"/v1/topics/{topic}/messages", {"subject": "eu", "payload": 1})).ok(201)
        received = [await socket.receive_json() for _ in range(2)]
        assert {one["op"] for one in received} == {"ready", "message"}


async def test_large_bodies_long_polls_and_errors_pass_a_proxy(proxy: Client) -> None:
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    (await proxy.put(f"/v1/queues/{queue}", {})).ok(201)
    waiting = asyncio.create_task(proxy.post(f"/v1/queues/{queue}/pull", {"waitMs": 20_000}))
    (await proxy.post(f"/v1/queues/{queue}/messages", {"payload": "x" * 1_000_000})).ok(201)
    assert len((await waiting).ok()["messages"]) == 1
    too_large = await proxy.post(f"/v1/queues/{queue}/messages", {"payload": "x" * 9_000_000})
    assert (too_large.status, too_large.json["code"]) == (413, "too-large")
    assert (await proxy.get("/metrics")).status == 404


async def _cron(running: Installation, folder: Path, queue: str, payload: str, **environment: str) -> tuple[int, str]:
    key = folder / "key"
    key.write_text(running.credentials["tenant_key"])
    given = {"PATH": os.environ["PATH"], "POSTROAD_URL": running.url, "POSTROAD_KEY_FILE": str(key), **environment}
    process = await asyncio.create_subprocess_exec(
        str(RECIPES / "cron-publish"), queue, payload, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_cron_publishes_once_a_minute(running: Installation, client: Client, tmp_path: Path) -> None:
    queue = f"reports-{uuid.uuid4().hex[:8]}"
    (await client.put(f"/v1/queues/{queue}", {})).ok(201)
    minutes = ["2026-11-18T12:00Z", "2026-11-18T12:00Z", "2026-11-18T12:15Z"]
    for minute in minutes:
        assert await _cron(running, tmp_path, queue, '{"kind": "hourly"}', MINUTE=minute) == (0, "")
    pulled = (await client.post(f"/v1/queues/{queue}/pull", {"maxMessages": 10, "waitMs": 5000})).ok()["messages"]
    assert [one["headers"]["minute"] for one in pulled] == ["2026-11-18T12:00Z", "2026-11-18T12:15Z"]
    assert pulled[0]["payload"] == {"kind": "hourly"}


async def test_cron_reports_a_failure(running: Installation, client: Client, tmp_path: Path) -> None:
    queue = f"reports-{uuid.uuid4().hex[:8]}"
    (await client.put(f"/v1/queues/{queue}", {})).ok(201)
    status, output = await _cron(running, tmp_path, queue, "{not json")
    assert status != 0
    assert "400" in output


@pytest.fixture
def database() -> Iterator[str]:
    """A PostgreSQL server of its own; it refuses to run as root."""
    tools = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    initdb = program("initdb", *[str(folder / "initdb") for folder in tools])
    user = "postgres" if os.getuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="postroad-outbox-", dir="/tmp"))  # tmp_path is closed to other users
    if user is not None:
        shutil.chown(home, user)
    port = free_port()
    quiet = subprocess.DEVNULL
    create = [initdb, "-D", str(home / "data"), "-A", "trust", "-U", "postgres"]
    subprocess.run(create, user=user, cwd=home, check=True, stdout=quiet, stderr=quiet)
    server = [str(Path(initdb).resolve().parent / "postgres"), "-D", str(home / "data"), "-p", str(port), "-k", str(home)]
    process = subprocess.Popen([*server, "-h", "127.0.0.1", "-F"], user=user, cwd=home, stdout=quiet, stderr=quiet)
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


async def _connect(url: str) -> "psycopg.AsyncConnection[tuple[object, ...]]":
    opened: list[psycopg.AsyncConnection[tuple[object, ...]]] = []

    async def connects() -> bool:
        try:
            opened.append(await psycopg.AsyncConnection.connect(url, autocommit=True))
        except psycopg.OperationalError:
            return False
        return True

    await eventually(connects)
    return opened[0]


async def test_an_outbox_publishes_each_committed_row_once(running: Installation, client: Client, database: str) -> None:
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    (await client.put(f"/v1/queues/{queue}", {})).ok(201)
    environment = {
        **os.environ,
        "DATABASE_URL": database,
        "POSTROAD_URL": running.url,
        "POSTROAD_KEY": running.credentials["tenant_key"],
    }
    insert = "INSERT INTO outbox (queue, payload) SELECT %s, jsonb_build_object('id', n) FROM generate_series(%s::int, %s::int) n"

    def relay() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(RECIPES / "outbox.py")], env=environment)

    async def ready() -> int:
        return int((await client.get(f"/v1/queues/{queue}")).ok()["stats"]["ready"])

    connection = await _connect(database)
    async with connection:
        await connection.execute((RECIPES / "outbox.sql").read_text())
        async with connection.transaction(force_rollback=True):
            await connection.execute(insert, (queue, 10_001, 10_100))

        async def left() -> int:
            row = await (await connection.execute("SELECT count(*) FROM outbox")).fetchone()
            assert row is not None
            return int(str(row[0]))

        async def is_published(count: int) -> bool:
            return await ready() >= count

        async def is_empty() -> bool:
            return await left() == 0

        for batch in range(3):  # the relay is killed while it works, wherever it is
            await connection.execute(insert, (queue, batch * ROWS + 1, (batch + 1) * ROWS))
            process = relay()
            await eventually(lambda batch=batch: is_published(batch * ROWS + 1))  # type: ignore[misc]
            process.kill()
            process.wait()
        process = relay()
        try:
            await eventually(is_empty)
            await connection.execute(insert, (queue, 3 * ROWS + 1, 3 * ROWS + 1))  # a notification wakes it
            await eventually(is_empty)
        finally:
            process.kill()
            process.wait()
    found: list[int] = []
    while pulled := (await client.post(f"/v1/queues/{queue}/pull", {"maxMessages": 100})).ok()["messages"]:
        found += [one["payload"]["id"] for one in pulled]
    assert sorted(found) == list(range(1, 3 * ROWS + 2)), json.dumps(found[:20])
