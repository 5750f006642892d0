"""Durable streams from the command line."""

import json
import signal
import subprocess
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


def lines(text: str) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_stream_is_made_once(shell: Shell, name: str) -> None:
    made = shell.run("streams", "create", name, "--ttl", "12h")
    assert made.output.startswith(f"made {name}, of application/json, up to 0000")
    assert "was there already" in shell.run("streams", "create", name, "--ttl", "12h").output
    assert shell.run("streams", "create", name, "--ttl", "12h", "--json").json["isNew"] is False
    assert shell.try_to("streams", "create", name, "--ttl", "1h").code == 1
    shown = shell.run("streams", "info", name).output
    assert "application/json" in shown and "43,200 s" in shown
    info = shell.run("streams", "info", name, "--json").json
    assert (info["ttlSeconds"], info["isClosed"], info["expiresAt"]) == (43_200, False, None)


def test_a_stream_begins_with_what_it_is_given(shell: Shell, name: str, tmp_path: Path) -> None:
    whole = shell.run("streams", "create", name, "[1, 2]", "--closed", "--public", "--expires", "1d", "--json").json
    assert whole["isClosed"] is True
    assert shell.run("streams", "cat", name).output == "[1,2]\n"
    assert shell.run("streams", "info", name, "--json").json["expiresAt"]
    file = tmp_path / "begin.txt"
    file.write_bytes(b"one\r\ntwo")
    shell.run("streams", "create", f"{name}-text", "--content-type", "text/plain", "--file", str(file))
    assert shell.by_process("streams", "cat", f"{name}-text").output.encode() == b"one\ntwo"  # as text, the shell's end is one
    assert shell.try_to("streams", "create", name, "1", "--file", str(file)).code == 2


def test_what_is_appended_is_written_message_by_message(shell: Shell, stream: str, tmp_path: Path) -> None:
    said = shell.run("streams", "append", stream, '{"n": 1}').output
    offset = said.split()[-1]
    assert said.startswith(f"appended to {stream}, which ends at 0000")
    shell.run("streams", "append", stream, "[1, 2]")  # one message, which is a list
    file = tmp_path / "message.json"
    file.write_text('{\n  "big": 12345678901234567890123\n}')
    shell.run("streams", "append", stream, "--file", str(file))
    last = shell.run("streams", "append", stream, "--file", "-", "--json", given='"in"').json
    assert last["isClosed"] is False

    read = shell.run("streams", "cat", stream)
    assert read.output == '{"n":1}\n[1,2]\n{"big":12345678901234567890123}\n"in"\n'
    assert read.complaints == f"to go on: --from {last['offset']}\n"
    assert shell.run("streams", "cat", stream, "--from", offset).output.startswith("[1,2]")
    told = shell.run("streams", "cat", stream, "--json").output
    assert [one["value"] for one in lines(told)][:2] == [{"n": 1}, [1, 2]]  # type: ignore[index]
    second = json.loads(told.splitlines()[1])
    rest = shell.run("streams", "cat", stream, "--from", second["offset"], "--skip", str(second["skip"]))
    assert rest.output == '{"big":12345678901234567890123}\n"in"\n'
    assert shell.run("streams", "cat", stream, "--from", last["offset"]).output == ""


def test_a_producers_lines_are_appended_once(shell: Shell, stream: str) -> None:
    shell.run("streams", "append", stream, "--lines", given="0\n\n")
    first = shell.run("streams", "append", stream, "--lines", "--producer", "me", given='1\n\n"two"')
    assert first.output == f"appended 2 lines to {stream}\n"
    again = shell.run("streams", "append", stream, "--lines", "--producer", "me", given='1\n\n"two"\n3\n')
    assert again.output == f"appended 1 lines to {stream}; 2 were there already\n"
    assert shell.run("streams", "cat", stream).output == '0\n1\n"two"\n3\n'
    known = shell.run("streams", "append", stream, "--lines", "--producer", "me", "--json", given="1\n").json
    assert (known["appended"], known["known"]) == (0, 1)

    shell.run("streams", "append", stream, "--lines", "--producer", "me", "--epoch", "2", given="4\n")
    fenced = shell.try_to("streams", "append", stream, "--lines", "--producer", "me", given="5\n")
    assert (fenced.code, "taken over" in fenced.complaints) == (3, True)


def test_lines_that_fail_say_how_far_they_came(shell: Shell, stream: str) -> None:
    failed = shell.try_to("streams", "append", stream, "--lines", given="1\nno json\n3\n")
    assert failed.code == 2
    assert "appended 1 lines, and then:" in failed.complaints
    assert shell.run("streams", "cat", stream).output == "1\n"


def test_lines_of_a_file_go_into_a_stream_of_text_as_they_are(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.run("streams", "create", name, "--content-type", "text/plain")
    file = tmp_path / "log.txt"
    file.write_text(" one\n\ntwo")
    shell.run("streams", "append", name, "--lines", "--file", str(file))
    shell.run("streams", "append", name, "three")
    assert shell.run("streams", "cat", name).output == " one\n\ntwo\nthree"
    [one, *_] = lines(shell.run("streams", "cat", name, "--json").output)
    assert set(one) == {"offset", "skip", "data"}  # type: ignore[call-overload]


def test_what_makes_no_sense_is_refused(shell: Shell, stream: str) -> None:
    assert shell.try_to("streams", "append", stream).code == 2
    assert shell.try_to("streams", "append", stream, "no json").code == 2
    assert shell.try_to("streams", "append", stream, "1", "--producer", "me").code == 2
    assert shell.try_to("streams", "append", stream, "1", "--lines").code == 2
    assert shell.try_to("streams", "append", stream, "1", "--content-type", "text/plain").code == 1
    assert shell.try_to("streams", "append", "a//b", "1").code == 2
    assert shell.try_to("streams", "cat", stream, "--from", "nonsense").code == 2
    assert shell.try_to("streams", "append", f"{stream}-no", "1").code == 4
    assert shell.try_to("streams", "info", f"{stream}-no").code == 4
    shell.run("streams", "append", stream, "1", "--seq", "b")
    assert shell.try_to("streams", "append", stream, "2", "--seq", "a").code == 1


def test_a_stream_is_closed_and_deleted(shell: Shell, stream: str) -> None:
    assert f"closed {stream}, which ends at" in shell.run("streams", "close", stream, '"end"').output
    assert shell.run("streams", "close", stream, "--json").json["isClosed"] is True
    refused = shell.try_to("streams", "append", stream, "1")
    assert (refused.code, "The stream is closed" in refused.complaints) == (1, True)
    assert shell.run("streams", "tail", stream, "--from", "-1").output == '"end"\n'
    assert shell.try_to("streams", "delete", stream, given="n\n").code == 1
    assert shell.run("streams", "delete", stream, "--yes").output == f"deleted {stream}\n"
    assert shell.try_to("streams", "cat", stream).code == 4


def test_a_fork_begins_with_what_the_other_has(shell: Shell, stream: str) -> None:
    first = shell.run("streams", "append", stream, '"a"', "--json").json["offset"]
    shell.run("streams", "append", stream, '"b"')
    assert "made" in shell.run("streams", "fork", f"{stream}/early", stream, "--at", first).output
    shell.run("streams", "fork", f"{stream}/more", stream, "--at", first, "--sub-offset", "1", "--ttl", "1h", "--json")
    assert shell.run("streams", "cat", f"{stream}/early").output == '"a"\n'
    assert shell.run("streams", "cat", f"{stream}/more").output == '"a"\n"b"\n'


@pytest.mark.parametrize("mode", [(), ("--long-poll",)])
def test_a_tail_ends_after_so_many(shell: Shell, stream: str, mode: tuple[str, ...]) -> None:
    for number in range(4):
        shell.run("streams", "append", stream, str(number))
    told = shell.run("streams", "tail", stream, "--from", "-1", "--limit", "3", "--json", *mode).output
    messages = lines(told)
    assert [one["value"] for one in messages] == [0, 1, 2]  # type: ignore[index]
    last = json.loads(told.splitlines()[-1])
    rest = shell.run("streams", "tail", stream, "--from", last["offset"], "--skip", str(last["skip"]), "--limit", "1", *mode)
    assert rest.output == "3\n"
    assert "to go on: --from" in rest.complaints


@pytest.mark.parametrize("mode", [(), ("--long-poll",)])
async def test_a_tail_writes_what_comes_until_the_stream_is_closed(shell: Shell, stream: str, mode: tuple[str, ...]) -> None:
    tail = start(shell, "streams", "tail", stream, "--from", "-1", *mode)
    assert tail.stdout is not None
    shell.run("streams", "append", stream, '"first"')
    assert tail.stdout.readline() == '"first"\n'
    shell.run("streams", "append", stream, '"second"')
    assert tail.stdout.readline() == '"second"\n'
    shell.run("streams", "close", stream, '"end"')
    output, complaints = tail.communicate(timeout=15)
    assert (tail.returncode, output, complaints) == (0, '"end"\n', "the stream is closed\n")


async def test_who_stops_a_tail_is_told_where_to_go_on(shell: Shell, stream: str) -> None:
    offsets = [shell.run("streams", "append", stream, data, "--json").json["offset"] for data in ("1", "2")]
    tail = start(shell, "streams", "tail", stream, "--from", "-1")
    assert tail.stdout is not None
    assert (tail.stdout.readline(), tail.stdout.readline()) == ("1\n", "2\n")
    tail.send_signal(signal.SIGINT)  # if it comes that soon, 2 does not count as written
    _, complaints = tail.communicate(timeout=15)
    assert tail.returncode == 130
    assert complaints in ("to go on: --from -1 --skip 1\n", f"to go on: --from {offsets[1]}\n")


async def test_a_tail_outlives_the_server(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = Installation(tmp_path / "own")
    try:
        await own.start().ready()
        there = shell.with_environment(POSTROAD_URL=own.url, POSTROAD_KEY=own.credentials["tenant_key"])
        there.run("streams", "create", "s")
        there.run("streams", "append", "s", "1")
        tail = start(there, "streams", "tail", "s", "--from", "-1")
        assert tail.stdout is not None and tail.stderr is not None
        assert tail.stdout.readline() == "1\n"
        own.end()
        assert "cannot be read just now" in tail.stderr.readline()
        await own.start().ready()
        there.run("streams", "append", "s", "2")
        there.run("streams", "close", "s", "3")
        await eventually(lambda: tail.poll() is not None, 30)
        assert tail.stdout.read() == "2\n3\n"
    finally:
        own.end()


async def test_a_platform_key_names_the_project(operator: Shell, shell: Shell, stream: str) -> None:
    operator.run("streams", "append", stream, "1", "--project", "default")
    assert shell.run("streams", "cat", stream).output == "1\n"
    assert operator.run("streams", "cat", stream, "--project", "default").output == "1\n"


def test_a_key_that_may_only_write_appends_json(shell: Shell, stream: str) -> None:
    key = shell.run("keys", "create", "writer", "--scope", "write").output.strip()
    writer = shell.with_environment(POSTROAD_KEY=key)
    writer.run("streams", "append", stream, "1")
    assert writer.try_to("streams", "cat", stream).code == 3


def test_the_bytes_of_a_stream_are_written_as_they_are(shell: Shell, name: str, tmp_path: Path) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(bytes(range(256)))
    shell.run("streams", "create", name, "--content-type", "application/octet-stream")
    shell.run("streams", "append", name, "--file", str(file))
    process = start(shell, "streams", "cat", name)
    assert process.stdout is not None
    assert process.stdout.buffer.read() == bytes(range(256))  # type: ignore[attr-defined]
    process.communicate(timeout=15)
    assert isinstance(process, subprocess.Popen)
