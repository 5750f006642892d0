"""Sessions on the command line."""

import asyncio
import json
import signal
import uuid
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.cli.test_upkeep_commands import start
from tests.installation import Installation
from tests.waiting import eventually


@pytest.fixture
def stream(shell: Shell, name: str) -> str:
    shell.run("streams", "create", f"cli/{name}")
    return f"cli/{name}"


@pytest.fixture
def session(shell: Shell, stream: str) -> str:
    """A session that subscribes to the stream."""
    return shell.run("sessions", "subscribe", stream).stdout.strip()


def test_the_id_of_a_session_is_alone_on_standard_output(shell: Shell, stream: str) -> None:
    made = shell.run("sessions", "subscribe", stream)
    assert str(uuid.UUID(made.stdout.strip())) == made.stdout.strip()
    assert made.stderr.startswith(f"subscribed a new session to {stream}; it expires at 20")
    again = shell.run("sessions", "subscribe", stream, "--session", made.stdout.strip())
    assert (again.stdout, again.stderr.startswith("subscribed the session to")) == (made.stdout, True)
    answer = shell.run("sessions", "subscribe", stream, "--session", made.stdout.strip(), "--json").json
    assert (answer["isNewSession"], answer["streamId"]) == (False, stream)
    assert answer["sessionStreamPath"] == f"/v1/default/stream/session:{made.stdout.strip()}"


def test_a_publish_prints_how_many_sessions_received_it(shell: Shell, stream: str, tmp_path: Path) -> None:
    first = shell.run("sessions", "publish", stream, '"no subscribers"').stdout
    assert first.startswith(f"published to {stream} at 0000") and first.endswith("; no sessions are subscribed\n")
    session = shell.run("sessions", "subscribe", stream).stdout.strip()
    shell.run("sessions", "subscribe", stream)
    assert shell.run("sessions", "publish", stream, "[1, 2]").stdout.endswith("; delivered to 2 of 2 sessions\n")
    file = tmp_path / "message.json"
    file.write_text('{"big": 12345678901234567890123}')
    answer = shell.run("sessions", "publish", stream, "--file", str(file), "--json").json
    assert (answer["mode"], answer["count"], answer["successes"], answer["failures"]) == ("inline", 2, 2, 0)
    assert shell.run("streams", "cat", f"session:{session}").stdout == '[1,2]\n{"big":12345678901234567890123}\n'
    assert shell.run("streams", "cat", stream).stdout.startswith('"no subscribers"\n')


def test_a_publish_with_a_producer_sequence_is_stored_once(shell: Shell, stream: str, session: str) -> None:
    numbered = ("--producer", "me", "--producer-seq", "0")
    shell.run("sessions", "publish", stream, "1", *numbered)
    assert shell.run("sessions", "publish", stream, "1", *numbered).stdout.startswith(f"duplicate, already stored in {stream}")
    assert shell.run("streams", "cat", f"session:{session}").stdout == "1\n"
    assert shell.invoke("sessions", "publish", stream, "3", "--producer", "me", "--producer-seq", "7").code == 1
    shell.run("sessions", "publish", stream, "4", *numbered, "--epoch", "1")
    assert shell.invoke("sessions", "publish", stream, "5", "--producer", "me", "--producer-seq", "1").code == 3


def test_a_session_is_shown_with_its_subscriptions(shell: Shell, stream: str, session: str) -> None:
    shell.run("sessions", "subscribe", "cli-no-such:*", "--session", session, "--envelope")
    shown = shell.run("sessions", "show", session).stdout
    assert f"/v1/default/stream/session:{session}" in shown
    assert "application/json" in shown
    rows = {line.split()[0]: line.split()[2:] for line in shown.partition("\nsubscriptions\n")[2].splitlines()[1:]}
    assert rows == {stream: ["no", "0"], "cli-no-such:*": ["yes"]}
    answer = shell.run("sessions", "show", session, "--json").json
    assert {one["streamId"]: one["envelope"] for one in answer["subscriptions"]} == {stream: False, "cli-no-such:*": True}

    assert shell.run("sessions", "unsubscribe", session, "cli-no-such:*").stdout == f"unsubscribed {session} from cli-no-such:*\n"
    assert shell.run("sessions", "unsubscribe", session, stream, "--json").json["streamId"] == stream
    assert stream not in shell.run("sessions", "show", session).stdout


def test_a_touch_prints_the_new_expiry(shell: Shell, session: str) -> None:
    before = shell.run("sessions", "show", session, "--json").json["expiresAt"]
    assert "expires at  20" in shell.run("sessions", "touch", session).stdout
    assert shell.run("sessions", "touch", session, "--json").json["expiresAt"] > before


def test_a_session_is_deleted(shell: Shell, session: str) -> None:
    asked = shell.invoke("sessions", "delete", session, stdin="n\n")
    assert (asked.code, "with its stream and subscriptions?" in asked.stdout) == (1, True)
    assert shell.run("sessions", "delete", session, "--yes").stdout == f"deleted {session}\n"
    for words in (("show",), ("touch",), ("delete", "--yes"), ("tail", "--limit", "1")):
        gone = shell.invoke("sessions", words[0], session, *words[1:])
        assert (gone.code, "Session not found" in gone.stderr) == (4, True), words


def test_fanout_prints_its_progress(shell: Shell, stream: str, session: str) -> None:
    end = shell.run("sessions", "publish", stream, "1", "--json").json["offset"]
    answer = shell.run("sessions", "fanout", stream, "--json").json
    assert answer == {"streamId": stream, "subscribers": 1, "doneOffset": end, "outstanding": 0, "breaker": "closed"}
    shown = shell.run("sessions", "fanout", stream).stdout
    assert "done offset" in shown and end in shown


def test_invalid_options_are_refused(shell: Shell, stream: str, session: str) -> None:
    assert shell.invoke("sessions", "publish", stream).code == 2
    assert shell.invoke("sessions", "publish", stream, "no json").code == 2
    assert shell.invoke("sessions", "publish", stream, "1", "--producer", "me").code == 2
    assert shell.invoke("sessions", "publish", stream, "x", "--content-type", "text/plain").code == 1
    assert shell.invoke("sessions", "publish", f"{stream}-no", "1").code == 4
    assert shell.invoke("sessions", "subscribe", f"{stream}-no").code == 4
    assert shell.invoke("sessions", "subscribe", stream, "--session", "no id").code == 2
    assert shell.invoke("sessions", "fanout", f"{stream}-no").code == 4
    assert shell.invoke("sessions", "show", "a/b").code == 2
    assert shell.invoke("sessions", "show", session, "--project", "another").code == 3


@pytest.mark.parametrize("mode", [(), ("--long-poll",)])
def test_a_tail_ends_at_its_limit(shell: Shell, stream: str, session: str, mode: tuple[str, ...]) -> None:
    for number in range(4):
        shell.run("sessions", "publish", stream, str(number))
    answer = shell.run("sessions", "tail", session, "--limit", "3", "--json", "--touch", *mode).stdout
    messages = [json.loads(line) for line in answer.splitlines()]
    assert [one["value"] for one in messages] == [0, 1, 2]
    last = messages[-1]
    rest = shell.run("sessions", "tail", session, "--from", last["offset"], "--skip", str(last["skip"]), "--limit", "1", *mode)
    assert rest.stdout == "3\n"
    assert "to resume: --from" in rest.stderr


async def test_a_tail_prints_messages_until_it_is_stopped(shell: Shell, stream: str, session: str) -> None:
    following = start(shell, "sessions", "tail", session)
    assert following.stdout is not None
    shell.run("sessions", "publish", stream, '"first"')
    assert following.stdout.readline() == '"first"\n'
    shell.run("sessions", "publish", stream, '"second"')
    assert following.stdout.readline() == '"second"\n'
    following.send_signal(signal.SIGINT)
    _, stderr = following.communicate(timeout=15)
    assert (following.returncode, stderr.startswith("to resume: --from ")) == (130, True)


async def test_a_tail_ends_with_its_session(shell: Shell, stream: str, session: str) -> None:
    following = start(shell, "sessions", "tail", session)
    assert following.stdout is not None
    shell.run("sessions", "publish", stream, "1")
    assert following.stdout.readline() == "1\n"
    shell.run("sessions", "delete", session, "--yes")
    _, stderr = following.communicate(timeout=15)
    assert (following.returncode, "Stream not found" in stderr) == (4, True)


async def test_a_tail_with_touch_keeps_a_session_alive(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = Installation(tmp_path / "own", POSTROAD_SESSION_TTL_SECONDS="5", POSTROAD_FANOUT_QUEUE_THRESHOLD="0")
    try:
        await own.start().ready()
        there = shell.with_environment(POSTROAD_URL=own.url, POSTROAD_KEY=own.credentials["tenant_key"])
        there.run("streams", "create", "s")
        touched = there.run("sessions", "subscribe", "s").stdout.strip()
        assert there.run("sessions", "publish", "s", "1").stdout.endswith("; delivering to 1 sessions (queued)\n")
        tail = start(there, "sessions", "tail", touched, "--touch")
        assert tail.stdout is not None
        begun = asyncio.ensure_future(asyncio.to_thread(tail.stdout.readline))
        while not begun.done():  # until it has begun, which takes a while on a busy machine, this test must
            await asyncio.wait({begun}, timeout=0.5)
            there.run("sessions", "touch", touched)
        assert begun.result() == "1\n"

        left_alone = there.run("sessions", "subscribe", "s").stdout.strip()
        await eventually(lambda: there.invoke("sessions", "show", left_alone).code == 4)
        there.run("sessions", "publish", "s", '"still here"')
        assert tail.stdout.readline() == '"still here"\n'
        tail.send_signal(signal.SIGINT)
        tail.communicate(timeout=15)
    finally:
        own.end()


def test_a_platform_key_selects_the_project(operator: Shell, shell: Shell, stream: str) -> None:
    of = ("--project", "default")
    session = operator.run("sessions", "subscribe", stream, *of).stdout.strip()
    operator.run("sessions", "publish", stream, "1", *of)
    assert operator.run("sessions", "tail", session, "--limit", "1", *of).stdout == "1\n"
    assert shell.run("streams", "cat", f"session:{session}").stdout == "1\n"
    operator.run("sessions", "fanout", stream, *of)
    operator.run("sessions", "unsubscribe", session, stream, *of)
    operator.run("sessions", "touch", session, *of)
    operator.run("sessions", "delete", session, "--yes", *of)


def test_sessions_are_listed(shell: Shell, session: str) -> None:
    listed = shell.run("sessions", "list", "--prefix", session, "--json").json
    assert [(one["sessionId"], one["subscriptions"]) for one in listed] == [(session, 1)]
