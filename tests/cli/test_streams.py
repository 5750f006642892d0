"""Durable streams on the command line."""

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


def test_creating_a_stream_is_idempotent(shell: Shell, name: str) -> None:
    made = shell.run("streams", "create", name, "--ttl", "12h")
    assert made.stdout.startswith(f"created {name}, application/json, ends at 0000")
    assert "already exists" in shell.run("streams", "create", name, "--ttl", "12h").stdout
    assert shell.run("streams", "create", name, "--ttl", "12h", "--json").json["isNew"] is False
    assert shell.invoke("streams", "create", name, "--ttl", "1h").code == 1
    shown = shell.run("streams", "info", name).stdout
    assert "application/json" in shown and "43,200 s" in shown
    info = shell.run("streams", "info", name, "--json").json
    assert (info["ttlSeconds"], info["isClosed"], info["expiresAt"]) == (43_200, False, None)


def test_a_stream_is_created_with_initial_data(shell: Shell, name: str, tmp_path: Path) -> None:
    whole = shell.run("streams", "create", name, "[1, 2]", "--closed", "--public", "--expires", "1d", "--json").json
    assert whole["isClosed"] is True
    assert shell.run("streams", "cat", name).stdout == "[1,2]\n"
    assert shell.run("streams", "info", name, "--json").json["expiresAt"]
    file = tmp_path / "begin.txt"
    file.write_bytes(b"one\r\ntwo")
    shell.run("streams", "create", f"{name}-text", "--content-type", "text/plain", "--file", str(file))
    assert shell.run_process("streams", "cat", f"{name}-text").stdout.encode() == b"one\ntwo"  # as text, the shell's end is one
    assert shell.invoke("streams", "create", name, "1", "--file", str(file)).code == 2


def test_a_json_stream_is_printed_one_message_per_line(shell: Shell, stream: str, tmp_path: Path) -> None:
    printed = shell.run("streams", "append", stream, '{"n": 1}').stdout
    offset = printed.split()[-1]
    assert printed.startswith(f"appended to {stream}, which ends at 0000")
    shell.run("streams", "append", stream, "[1, 2]")  # one message, which is a list
    file = tmp_path / "message.json"
    file.write_text('{\n  "big": 12345678901234567890123\n}')
    shell.run("streams", "append", stream, "--file", str(file))
    last = shell.run("streams", "append", stream, "--file", "-", "--json", stdin='"in"').json
    assert last["isClosed"] is False

    read = shell.run("streams", "cat", stream)
    assert read.stdout == '{"n":1}\n[1,2]\n{"big":12345678901234567890123}\n"in"\n'
    assert read.stderr == f"to resume: --from {last['offset']}\n"
    assert shell.run("streams", "cat", stream, "--from", offset).stdout.startswith("[1,2]")
    answer = shell.run("streams", "cat", stream, "--json").stdout
    assert [one["value"] for one in lines(answer)][:2] == [{"n": 1}, [1, 2]]  # type: ignore[index]
    second = json.loads(answer.splitlines()[1])
    rest = shell.run("streams", "cat", stream, "--from", second["offset"], "--skip", str(second["skip"]))
    assert rest.stdout == '{"big":12345678901234567890123}\n"in"\n'
    assert shell.run("streams", "cat", stream, "--from", last["offset"]).stdout == ""


def test_repeated_lines_of_a_producer_are_appended_once(shell: Shell, stream: str) -> None:
    shell.run("streams", "append", stream, "--lines", stdin="0\n\n")
    first = shell.run("streams", "append", stream, "--lines", "--producer", "me", stdin='1\n\n"two"')
    assert first.stdout == f"appended 2 lines to {stream}\n"
    again = shell.run("streams", "append", stream, "--lines", "--producer", "me", stdin='1\n\n"two"\n3\n')
    assert again.stdout == f"appended 1 lines to {stream}; skipped 2 duplicates\n"
    assert shell.run("streams", "cat", stream).stdout == '0\n1\n"two"\n3\n'
    known = shell.run("streams", "append", stream, "--lines", "--producer", "me", "--json", stdin="1\n").json
    assert (known["appended"], known["known"]) == (0, 1)

    shell.run("streams", "append", stream, "--lines", "--producer", "me", "--epoch", "2", stdin="4\n")
    fenced = shell.invoke("streams", "append", stream, "--lines", "--producer", "me", stdin="5\n")
    assert (fenced.code, "fenced" in fenced.stderr) == (3, True)


def test_a_failed_append_of_lines_prints_how_many_were_appended(shell: Shell, stream: str) -> None:
    failed = shell.invoke("streams", "append", stream, "--lines", stdin="1\nno json\n3\n")
    assert failed.code == 2
    assert "appended 1 lines before this error:" in failed.stderr
    assert shell.run("streams", "cat", stream).stdout == "1\n"


def test_lines_of_a_file_are_appended_to_a_text_stream_unchanged(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.run("streams", "create", name, "--content-type", "text/plain")
    file = tmp_path / "log.txt"
    file.write_text(" one\n\ntwo")
    shell.run("streams", "append", name, "--lines", "--file", str(file))
    shell.run("streams", "append", name, "three")
    assert shell.run("streams", "cat", name).stdout == " one\n\ntwo\nthree"
    [one, *_] = lines(shell.run("streams", "cat", name, "--json").stdout)
    assert set(one) == {"offset", "skip", "data"}  # type: ignore[call-overload]


def test_invalid_options_are_refused(shell: Shell, stream: str) -> None:
    assert shell.invoke("streams", "append", stream).code == 2
    assert shell.invoke("streams", "append", stream, "no json").code == 2
    assert shell.invoke("streams", "append", stream, "1", "--producer", "me").code == 2
    assert shell.invoke("streams", "append", stream, "1", "--lines").code == 2
    assert shell.invoke("streams", "append", stream, "1", "--content-type", "text/plain").code == 1
    assert shell.invoke("streams", "append", "a//b", "1").code == 2
    assert shell.invoke("streams", "cat", stream, "--from", "nonsense").code == 2
    assert shell.invoke("streams", "append", f"{stream}-no", "1").code == 4
    assert shell.invoke("streams", "info", f"{stream}-no").code == 4
    shell.run("streams", "append", stream, "1", "--seq", "b")
    assert shell.invoke("streams", "append", stream, "2", "--seq", "a").code == 1


def test_a_stream_is_closed_and_deleted(shell: Shell, stream: str) -> None:
    assert f"closed {stream}, which ends at" in shell.run("streams", "close", stream, '"end"').stdout
    assert shell.run("streams", "close", stream, "--json").json["isClosed"] is True
    refused = shell.invoke("streams", "append", stream, "1")
    assert (refused.code, "Stream closed" in refused.stderr) == (1, True)
    assert shell.run("streams", "tail", stream, "--from", "-1").stdout == '"end"\n'
    assert shell.invoke("streams", "delete", stream, stdin="n\n").code == 1
    assert shell.run("streams", "delete", stream, "--yes").stdout == f"deleted {stream}\n"
    assert shell.invoke("streams", "cat", stream).code == 4


def test_a_fork_starts_with_the_content_of_its_source(shell: Shell, stream: str) -> None:
    first = shell.run("streams", "append", stream, '"a"', "--json").json["offset"]
    shell.run("streams", "append", stream, '"b"')
    assert "created" in shell.run("streams", "fork", f"{stream}/early", stream, "--at", first).stdout
    shell.run("streams", "fork", f"{stream}/more", stream, "--at", first, "--sub-offset", "1", "--ttl", "1h", "--json")
    assert shell.run("streams", "cat", f"{stream}/early").stdout == '"a"\n'
    assert shell.run("streams", "cat", f"{stream}/more").stdout == '"a"\n"b"\n'


@pytest.mark.parametrize("mode", [(), ("--long-poll",)])
def test_a_tail_ends_at_its_limit(shell: Shell, stream: str, mode: tuple[str, ...]) -> None:
    for number in range(4):
        shell.run("streams", "append", stream, str(number))
    answer = shell.run("streams", "tail", stream, "--from", "-1", "--limit", "3", "--json", *mode).stdout
    messages = lines(answer)
    assert [one["value"] for one in messages] == [0, 1, 2]  # type: ignore[index]
    last = json.loads(answer.splitlines()[-1])
    rest = shell.run("streams", "tail", stream, "--from", last["offset"], "--skip", str(last["skip"]), "--limit", "1", *mode)
    assert rest.stdout == "3\n"
    assert "to resume: --from" in rest.stderr


@pytest.mark.parametrize("mode", [(), ("--long-poll",)])
async def test_a_tail_prints_messages_until_the_stream_is_closed(shell: Shell, stream: str, mode: tuple[str, ...]) -> None:
    tail = start(shell, "streams", "tail", stream, "--from", "-1", *mode)
    assert tail.stdout is not None
    shell.run("streams", "append", stream, '"first"')
    assert tail.stdout.readline() == '"first"\n'
    shell.run("streams", "append", stream, '"second"')
    assert tail.stdout.readline() == '"second"\n'
    shell.run("streams", "close", stream, '"end"')
    output, stderr = tail.communicate(timeout=15)
    assert (tail.returncode, output, stderr) == (0, '"end"\n', "the stream is closed\n")


async def test_a_stopped_tail_prints_the_options_to_resume(shell: Shell, stream: str) -> None:
    offsets = [shell.run("streams", "append", stream, data, "--json").json["offset"] for data in ("1", "2")]
    tail = start(shell, "streams", "tail", stream, "--from", "-1")
    assert tail.stdout is not None
    assert (tail.stdout.readline(), tail.stdout.readline()) == ("1\n", "2\n")
    tail.send_signal(signal.SIGINT)  # if it comes that soon, 2 does not count as written
    _, stderr = tail.communicate(timeout=15)
    assert tail.returncode == 130
    assert stderr in ("to resume: --from -1 --skip 1\n", f"to resume: --from {offsets[1]}\n")


async def test_a_tail_survives_a_server_restart(shell: Shell, tmp_path: Path) -> None:
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
        assert "cannot be read, retrying" in tail.stderr.readline()
        await own.start().ready()
        there.run("streams", "append", "s", "2")
        there.run("streams", "close", "s", "3")
        await eventually(lambda: tail.poll() is not None)
        assert tail.stdout.read() == "2\n3\n"
    finally:
        own.end()


async def test_a_platform_key_selects_the_project(operator: Shell, shell: Shell, stream: str) -> None:
    operator.run("streams", "append", stream, "1", "--project", "default")
    assert shell.run("streams", "cat", stream).stdout == "1\n"
    assert operator.run("streams", "cat", stream, "--project", "default").stdout == "1\n"


def test_a_write_only_key_appends_json(shell: Shell, stream: str) -> None:
    key = shell.run("keys", "create", "writer", "--scope", "write").stdout.strip()
    writer = shell.with_environment(POSTROAD_KEY=key)
    writer.run("streams", "append", stream, "1")
    assert writer.invoke("streams", "cat", stream).code == 3


def test_the_bytes_of_a_stream_are_printed_unchanged(shell: Shell, name: str, tmp_path: Path) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(bytes(range(256)))
    shell.run("streams", "create", name, "--content-type", "application/octet-stream")
    shell.run("streams", "append", name, "--file", str(file))
    process = start(shell, "streams", "cat", name)
    assert process.stdout is not None
    assert process.stdout.buffer.read() == bytes(range(256))  # type: ignore[attr-defined]
    process.communicate(timeout=15)
    assert isinstance(process, subprocess.Popen)


def test_streams_are_listed(shell: Shell, name: str) -> None:
    for number in range(3):
        shell.run("streams", "create", f"list-{name}/{number}", "1")
    listed = shell.run("streams", "list", "--prefix", f"list-{name}/", "--json").json
    assert [(one["id"], one["appends"]) for one in listed] == [(f"list-{name}/{number}", 1) for number in range(3)]
    assert f"list-{name}/2" in shell.run("streams", "list", "--prefix", f"list-{name}/").stdout


def test_retention_is_set_and_shown(shell: Shell, name: str) -> None:
    shell.run("streams", "create", name, "--max-age", "12h", "--max-bytes", "1000", "--max-count", "5")
    info = shell.run("streams", "info", name, "--json").json
    assert (info["maxAgeSeconds"], info["maxBytes"], info["maxCount"], info["startOffset"]) == (43_200, 1000, 5, None)
    assert "43,200 s" in shell.run("streams", "info", name).stdout
