"""Every command, run as a person or a script runs it, against a started Postroad."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from postroad.engine.child import free_port
from tests.installation import Installation


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("cli"))
    yield await installation.start().ready()
    installation.end()


async def postroad(
    running: Installation | None, *words: str, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | {"COLUMNS": "250"}
    if running is not None:
        env |= {"POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["tenant_key"]}
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "postroad", *words],
        env=env | environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def output(running: Installation, *words: str, given: str = "") -> str:
    finished = await postroad(running, *words, given=given)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


async def test_a_message_goes_all_the_way(running: Installation) -> None:
    made = json.loads(await output(running, "queues", "put", "orders", "--visibility-timeout-ms", "60000", "--json"))
    assert made["settings"]["visibilityTimeoutMs"] == 60_000

    published = json.loads(
        await output(
            running,
            "queues",
            "publish",
            "orders",
            "-",
            "--header",
            "kind=new",
            "--correlation-id",
            "c",
            "--json",
            given='{"n": 1}',
        )
    )
    assert "orders" in await output(running, "queues", "list")
    [message] = json.loads(await output(running, "queues", "pull", "orders", "--wait-ms", "5000", "--json"))
    assert (message["messageId"], message["payload"], message["headers"]) == (published["messageId"], {"n": 1}, {"kind": "new"})
    assert "acknowledged 1 of 1" in await output(running, "queues", "ack", "orders", message["receiptId"])
    shown = json.loads(await output(running, "queues", "show", "orders", "--json"))
    assert shown["stats"] == {"ready": 0, "leased": 0, "delayed": 0}


async def test_what_is_pulled_with_ack_does_not_come_back(running: Installation) -> None:
    await output(running, "queues", "publish", "once", "1")
    assert "attempt" in await output(running, "queues", "pull", "once", "--wait-ms", "5000", "--ack")
    assert json.loads(await output(running, "queues", "show", "once", "--json"))["stats"]["leased"] == 0


async def test_a_delete_says_how_much_goes_and_asks(running: Installation) -> None:
    await output(running, "queues", "publish", "doomed", "1")
    refused = await postroad(running, "queues", "delete", "doomed", given="n\n")
    assert refused.returncode == 1
    assert "Delete doomed with 1 messages?" in refused.stdout
    assert "deleted doomed with 1 messages" in await output(running, "queues", "delete", "doomed", "--yes")


async def test_health_is_told(running: Installation) -> None:
    assert "engine" in await output(running, "health")
    assert json.loads(await output(running, "health", "--json"))["status"] == "ready"


async def test_the_description_needs_no_server() -> None:
    finished = await postroad(None, "openapi")
    assert json.loads(finished.stdout)["openapi"] == "3.1.0"


async def test_the_version_is_told() -> None:
    assert (await postroad(None, "--version")).stdout.startswith("postroad ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("queues", "show", "nowhere"), 4, "No such queue"),
        (("queues", "publish", "orders", "not json"), 2, "not JSON"),
        (("queues", "publish", "orders", "1", "--header", "kind"), 2, "name=value"),
        (("queues", "put", "a b"), 2, "a queue's name"),
        (("queues", "ack", "orders", "forged"), 1, "acknowledged 0 of 1"),
    ],
)
async def test_what_goes_wrong_has_a_sentence_and_a_code(
    running: Installation, words: tuple[str, ...], code: int, said: str
) -> None:
    await output(running, "queues", "put", "orders")
    finished = await postroad(running, *words)
    assert finished.returncode == code, finished.stderr
    assert said in finished.stderr + finished.stdout
    assert "Traceback" not in finished.stderr


async def test_a_wrong_key_is_refused_and_not_shown(running: Installation) -> None:
    finished = await postroad(running, "queues", "list", POSTROAD_KEY="pr_live_wrong")
    assert finished.returncode == 3
    assert "pr_live_wrong" not in finished.stderr + finished.stdout


async def test_without_a_key_it_says_which_variable_is_missing() -> None:
    finished = await postroad(None, "queues", "list")
    assert finished.returncode == 2
    assert "POSTROAD_KEY" in finished.stderr


async def test_help_helps() -> None:
    for words in ((), ("up",), ("serve",), ("queues",), ("queues", "pull")):
        finished = await postroad(None, *words, "--help")
        assert finished.returncode == 0
        assert "Usage" in finished.stdout


async def test_nobody_there_is_exit_code_5() -> None:
    finished = await postroad(None, "health", POSTROAD_URL=f"http://127.0.0.1:{free_port()}", POSTROAD_KEY="k")
    assert finished.returncode == 5
