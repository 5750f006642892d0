"""The README's first message and every example, run against a started Postroad as a newcomer would."""

import asyncio
import hashlib
import hmac
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from postroad.runtime.embedded_server import free_port
from tests.installation import Installation
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("examples"), POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8")
    yield await installation.start().ready()
    installation.end()


async def run(command: list[str], running: Installation, *, seconds: float = 60, **environment: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "API": running.url, **environment}
    finished = await asyncio.to_thread(
        subprocess.run, command, cwd=running.home, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


async def test_the_first_message_of_the_readme_arrives(running: Installation) -> None:
    block = re.search(r"## A first message.*?```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert len(block[1].strip().splitlines()) == 5

    output = await run(["bash", "-eu", "-c", block[1]], running)

    assert '"payload":{"greeting": "good morning"}' in output
    assert output.endswith('{"ok":true}')


async def test_the_sdk_example_works_off_its_orders(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run([sys.executable, str(ROOT / "examples" / "sdk.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    assert output.splitlines()[-1] == "all 7 done"


async def test_the_cloudevents_example_publishes_once_and_keeps_all_attributes(running: Installation) -> None:
    script, key = str(ROOT / "examples" / "cloudevents.py"), running.credentials["tenant_key"]

    output = await run([sys.executable, script], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    assert output.splitlines() == [
        "published com.example.order.created once: True",
        "received com.example.order.created from https://shop.example/eu, all attributes: True",
        "AsyncAPI describes both: True",
    ]


async def test_the_load_test_example_compares_two_rates(running: Installation) -> None:
    key = running.credentials["tenant_key"]
    script = str(ROOT / "examples" / "console" / "load_test.py")

    output = await run([sys.executable, script], running, seconds=120, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    found = re.findall(r"(\d+)/s requested: (\d+) published, (\d+) consumed, done", output)
    assert [one[0] for one in found] == ["20", "60"]
    assert all(0 < int(published) == int(consumed) for _, published, consumed in found)
    assert output.splitlines()[-1] == "the third one was cancelled"


async def test_the_declarations_example_undoes_a_change_by_hand(running: Installation) -> None:
    script, key = str(ROOT / "examples" / "declarations" / "apply.py"), running.credentials["tenant_key"]

    output = await run([sys.executable, script], running, seconds=120, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    assert output.splitlines() == [
        "applied: True",
        "the server is as the file says: True",
        "changed by hand: True",
        "attempts after the next apply: 3",
        "resources of the manifest: 4",
        "resources after an apply of an empty file with --prune: 0",
    ]


async def test_the_incident_example_redrives_only_those(running: Installation) -> None:
    script, key = str(ROOT / "examples" / "console" / "incident.py"), running.credentials["tenant_key"]

    output = await run([sys.executable, script], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    lines = output.splitlines()
    assert lines[0] == "order 10003 is dead in example-incident: HTTP 500 from crm, request 4711"
    assert lines[1:4] == ["3 of HTTP # from crm, request #", "1 of # no such mailbox", "3 moved, 1 died again"]
    assert lines[-2:] == ["paused: the crm is down", "the live state says paused: True"]


async def test_the_sign_in_example_signs_in_once(running: Installation) -> None:
    script, key = str(ROOT / "examples" / "console" / "sign_in.py"), running.credentials["admin_key"]

    output = await run([sys.executable, script], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    lines = output.splitlines()
    assert lines[0].endswith("with HttpOnly: True")
    assert lines[1:5] == [
        "the link again: 401",
        "queues with the cookie: 200",
        "a change from another site: 403",
        "after signing out: 401",
    ]
    assert re.fullmatch(r"1 server, \d+ streams, 0 without a quorum", lines[5])


async def test_the_self_throttling_example_pauses(running: Installation) -> None:
    key = running.credentials["tenant_key"]
    script = str(ROOT / "examples" / "commands" / "self_throttling.py")

    output = await run([sys.executable, script], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    assert output.splitlines() == ["a command was refused", "the service pauses"]


async def test_the_worker_example_works_off_its_orders(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "worker.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert len(re.findall(r"^done \d+", output, re.MULTILINE)) == 7
    assert "done 3 attempt 2" in output


async def test_the_jobs_example_controls_its_jobs(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run([sys.executable, str(ROOT / "examples" / "jobs.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key)

    lines = output.splitlines()
    assert lines[0] == "the customer has an export already: True"
    assert re.fullmatch(r"progress is shown: row \d+", lines[1])
    assert lines[2:] == ["the worker stopped it: True", "it is delayed", "it ran: True", "the order is high, normal, low"]


async def test_the_schedule_example_runs_every_second(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "schedule.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.count("tick of clean with {'older_than_days': 30}") == 3
    assert "3 runs are known" in output
    assert output.splitlines()[-1] == "deleted"


async def test_the_topics_example_replays_its_orders(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "topics" / "orders.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.splitlines() == [
        "example-orders keeps messages for 30 days",
        "created: [1, 2, 3]",
        "in the US, or paid: 3",
        "open: [3]",
        "new since then: [1] 1",
        "the key stands for another message",
        "purged: 2",
        "deleted",
    ]


async def test_the_fanout_example_delivers_to_an_endpoint_and_a_queue(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "topics" / "fanout.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.splitlines() == [
        "pushed: 1 orders.eu.created, 2 orders.eu.paid, 3 orders.us.created",
        "in the queue: orders.eu.paid {'id': 1}",
        "deleted",
    ]


async def test_the_commands_example_delivers_what_is_granted(running: Installation) -> None:
    output = await run(
        [sys.executable, str(ROOT / "examples" / "commands" / "services.py")],
        running,
        POSTROAD_URL=running.url,
        POSTROAD_KEY=running.credentials["tenant_key"],
    )

    assert output.splitlines() == [
        "billing sent it by the fast path",
        "newsletter has no grant",
        "bot received post-message from billing {'text': 'invoice 42 is paid'}",
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("pipeline")
@pytest.mark.timeout(600)
async def test_the_replay_example_delivers_what_the_target_missed(tmp_path: Path) -> None:
    installation = Installation(tmp_path, POSTROAD_PIPELINE="true", POSTROAD_PIPELINE_SECONDS="2")
    try:
        running = await installation.start().ready(120)
        output = await run(
            [sys.executable, str(ROOT / "examples" / "commands" / "replay.py")],
            running,
            seconds=300,
            POSTROAD_URL=running.url,
            POSTROAD_KEY=running.credentials["tenant_key"],
        )
    finally:
        installation.end()
    *failed, replayed, first, second, third = output.splitlines()
    assert failed == [f"order {number} failed" for number in range(3)]
    assert replayed == "replay done delivered 3 of 3"
    assert {first, second, third} == {f"printer received {{'order': {number}}}" for number in range(3)}


async def test_the_noisy_neighbour_loses_the_warm_path_and_the_quiet_one_is_served(running: Installation) -> None:
    output = await run(
        [sys.executable, str(ROOT / "examples" / "commands" / "noisy_neighbour.py")],
        running,
        POSTROAD_URL=running.url,
        POSTROAD_KEY=running.credentials["tenant_key"],
    )

    noisy, quiet, used = output.splitlines()
    assert noisy.startswith("noisy: {") and "rate-limit-exceeded" not in quiet and "fairness" not in quiet
    assert quiet.startswith("quiet: {") and used.startswith("used ")


async def test_the_projection_example_follows_the_change_stream(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "buckets" / "projection.py")],
        running,
        POSTROAD_URL=running.url,
        POSTROAD_KEY=key,
    )

    assert output.splitlines() == [
        "in a browser: new EventSource('/v1/buckets/cart-totals/watch?bearer=pr_token_…')",
        "user.1 5",
        "user.1 has no cart any more",
    ]


async def test_the_audit_example_archives_every_change(running: Installation) -> None:
    output = await run(
        [sys.executable, str(ROOT / "examples" / "buckets" / "audit.py")],
        running,
        POSTROAD_URL=running.url,
        POSTROAD_KEY=running.credentials["tenant_key"],
    )

    assert output.splitlines() == ["1 put acme {'limit': 100}", "2 put acme {'limit': 500}", "3 delete acme"]


async def test_the_buckets_example_keeps_every_item(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "buckets" / "cart.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.splitlines() == [
        "items: ['bread', 'milk', 'tea']",
        "revisions: 4",
        "put user.2",
        "put user.1",
        "delete user.2",
    ]


async def test_the_access_example_shows_what_was_done(running: Installation) -> None:
    key = running.credentials["admin_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "access.py")], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.count("refused: the key lacks the scope 'publish'") == 2
    done = [line.split()[0] for line in output.splitlines() if line.startswith("  ")]
    assert [action for action in done if not action.startswith("queue.")] == ["key.rotate", "key.create", "tenant.create"]
    assert output.splitlines()[-1].startswith("deleting parcels-")
    assert "pr_" not in output


@pytest.mark.parametrize("command", [[sys.executable, "receiver.py"], ["node", "receiver.mjs"]], ids=["python", "node"])
async def test_the_receivers_verify_and_print_deliveries(running: Installation, command: list[str], name: str) -> None:
    port, folder = free_port(), ROOT / "examples" / "webhooks"
    secret = "the secret of the receivers"
    receiver = subprocess.Popen(  # noqa: ASYNC220  # it returns at once
        command, cwd=folder, env={**os.environ, "SECRET": secret, "PORT": str(port)}, stdout=subprocess.PIPE, text=True
    )
    try:
        async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
            await eventually(lambda: _is_listening(port))
            async with session.put(f"/v1/topics/{name}", json={}) as answer:
                assert answer.status == 201
            new = {"delivery_type": "http_push", "url": f"http://127.0.0.1:{port}/", "secret": secret}
            async with session.post(f"/v1/topics/{name}/subscriptions", json=new) as answer:
                assert answer.status == 201
            async with session.post(f"/v1/topics/{name}/messages", json={"subject": "eu.created", "payload": {"n": 1}}) as answer:
                assert answer.status == 201
            assert receiver.stdout is not None
            line = await asyncio.wait_for(asyncio.to_thread(receiver.stdout.readline), 30)
            assert line == f'{name} eu.created 1 {{"n": 1}}\n'
            async with session.post(
                f"http://127.0.0.1:{port}/", data=b"forged", headers={"X-MQ-Signature": "sha256=00"}
            ) as answer:
                assert answer.status == 400
    finally:
        receiver.kill()
        receiver.wait()


async def test_the_shell_receiver_verifies_a_delivery(running: Installation) -> None:
    secret, timestamp, body = "a secret", "1700000000000", '{"n": 1}'
    signature = "sha256=" + hmac.new(secret.encode(), f"{timestamp}.{body}".encode(), hashlib.sha256).hexdigest()
    script = ROOT / "examples" / "webhooks" / "receiver.sh"

    def verify(given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(script), timestamp, given],
            env={"PATH": "/usr/bin:/bin", "SECRET": secret},
            input=body,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    assert verify(signature).stdout == body
    refused = verify(signature[:-1] + ("0" if signature[-1] != "0" else "1"))
    assert (refused.returncode, refused.stdout) == (1, "")


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_the_ordered_example_has_the_right_balances(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "ordered.py"), "1500"], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert re.search(r"^1500 transfers, \d+ workers killed; balances are right: True$", output, re.MULTILINE), output


async def test_the_fair_example_serves_quiet_customers_first(running: Installation) -> None:
    key = running.credentials["tenant_key"]

    output = await run(
        [sys.executable, str(ROOT / "examples" / "fair.py"), "600"], running, POSTROAD_URL=running.url, POSTROAD_KEY=key
    )

    assert output.startswith("600 messages of the noisy customer; the quiet ones were served after"), output


async def test_the_example_of_sns_replays_a_fifo_topic(running: Installation) -> None:
    found = running.credentials
    keys = {"AWS_ACCESS_KEY_ID": found["aws_access_key_id"], "AWS_SECRET_ACCESS_KEY": found["aws_secret_access_key"]}
    script = str(ROOT / "examples" / "sns_fifo.py")
    variables = {**keys, "AWS_ENDPOINT_URL": running.url, "AWS_DEFAULT_REGION": "us-east-1"}
    output = await run([sys.executable, script], running, seconds=120, **variables)
    assert output.splitlines() == ["both queues have every account in order", "replayed 6 messages to the ledger"]
