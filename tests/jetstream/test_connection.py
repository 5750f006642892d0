import asyncio
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import servers
from tests.servers import OpenConnection, Server, TcpProxy, restart
from tests.waiting import eventually

from postroad.jetstream import connection
from postroad.jetstream.api_errors import STREAM_NOT_FOUND, ApiFailure
from postroad.jetstream.connection import Connection, ConnectionLost, ConnectionSettings
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.protocol import encode_plain
from postroad.kernel.errors import EngineRefused, EngineUnavailable
from postroad.runtime.embedded_server import free_port


async def _echo(connection: Connection, subject: str) -> Callable[[], object]:
    def answer(message: IncomingMessage) -> None:
        connection.publish(message.reply, b"echo " + message.data)

    return connection.subscribe(subject, answer)


# Requests and replies


async def test_a_request_gets_its_own_reply(
    connection: Connection, engine_url: str, open_connection: OpenConnection, name: str
) -> None:
    other = await open_connection(engine_url)
    await _echo(other, name)
    await other.request("$JS.API.INFO")  # after this the server knows the subscription
    answers = await asyncio.gather(*[connection.request(name, b"%d" % number) for number in range(100)])
    assert [answer.data for answer in answers] == [b"echo %d" % number for number in range(100)]


async def test_a_request_without_responders_is_answered_503(connection: Connection, name: str) -> None:
    assert (await connection.request(name)).status == "503"


async def test_a_request_without_a_reply_times_out(connection: Connection, name: str) -> None:
    def silence(_message: IncomingMessage) -> None:
        pass

    stop = connection.subscribe(name, silence)
    with pytest.raises(TimeoutError):
        await connection.request(name, timeout=0.05)
    await stop()


async def test_an_ended_subscription_receives_no_messages(connection: Connection, name: str) -> None:
    received: list[bytes] = []

    def handler(message: IncomingMessage) -> None:
        received.append(message.data)

    stop = connection.subscribe(name, handler)
    connection.publish(name, b"one")
    await eventually(lambda: received == [b"one"])
    await stop()
    connection.publish(name, b"two")
    assert (await connection.request(name)).status == "503"
    assert received == [b"one"]


async def test_several_replies_arrive_in_order_until_forgotten(connection: Connection) -> None:
    inbox, answers = connection.expect_many()
    for number in range(10):
        connection.publish(inbox, b"%d" % number)
    async with asyncio.timeout(30):
        received = [await answers.get() for _ in range(10)]
    assert [reply.data for reply in received if reply] == [b"%d" % number for number in range(10)]
    connection.forget(inbox)
    connection.publish(inbox, b"late")
    await connection.request("$JS.API.INFO")
    assert answers.empty()


async def test_a_forgotten_reply_is_dropped(connection: Connection) -> None:
    inbox, future = connection.expect()
    connection.forget(inbox)
    connection.publish(inbox, b"late")
    await connection.request("$JS.API.INFO")
    assert not future.done()


# Loss of the server


async def test_requests_in_progress_fail_at_once_when_the_server_is_killed(
    own_server: Server, open_connection: OpenConnection
) -> None:
    connection = await open_connection(own_server.url)
    waiting = [connection.expect()[1] for _ in range(10)]
    _, answers = connection.expect_many()
    own_server.kill()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert await answers.get() is None
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 10
    assert not connection.is_up
    for expect in (connection.expect, connection.expect_many):
        with pytest.raises(ConnectionLost):
            expect()
    with pytest.raises(ConnectionLost):
        await connection.request("$JS.API.INFO")


async def test_a_connection_and_its_subscriptions_are_restored_after_a_restart(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await _echo(connection, name)
    calls: list[str] = []
    connection.on_reconnect(lambda: calls.append("registered"))
    remove = connection.on_reconnect(lambda: calls.append("removed"))
    remove()
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    own_server.start()
    async with asyncio.timeout(30):
        await connection.wait_up()
    assert calls == ["registered"]
    assert (await connection.request(name, b"again")).data == b"echo again"


async def test_a_connection_survives_repeated_restarts(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    for _ in range(5):
        await restart(own_server, connection)
        assert (await connection.request("$JS.API.INFO")).status == ""


async def test_a_broken_connection_is_noticed_and_restored(proxy: TcpProxy, open_connection: OpenConnection) -> None:
    connection = await open_connection(proxy.url)
    _, waiting = connection.expect()
    proxy.cut()
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, 30)
    async with asyncio.timeout(30):
        await connection.wait_up()
    assert (await connection.request("$JS.API.INFO")).status == ""


async def test_closing_fails_the_requests_in_progress(engine_url: str) -> None:
    connection = Connection(ConnectionSettings((engine_url,)))
    await connection.open()
    _, waiting = connection.expect()
    await connection.close()
    assert not connection.is_up
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, 30)


# JetStream API calls


async def test_an_api_error_is_raised_with_its_code_or_translated(connection: Connection, name: str) -> None:
    with pytest.raises(ApiFailure) as caught:
        await connection.api(f"STREAM.INFO.{name}")
    assert caught.value.error.err_code == STREAM_NOT_FOUND
    with pytest.raises(EngineRefused, match="stream not found"):
        await connection.call(f"STREAM.INFO.{name}")


async def test_an_api_call_without_responders_is_unavailable_after_its_timeout(connection: Connection) -> None:
    with pytest.raises(EngineUnavailable, match="stream: no answer") as caught:
        await connection.api("STREAM.NO.SUCH.CALL", timeout=0.3)
    assert caught.value.retry_after


async def test_an_api_call_is_unavailable_while_the_server_is_down(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    own_server.kill()
    with pytest.raises(EngineUnavailable):
        await connection.api("INFO", timeout=0.3)


async def test_an_api_call_survives_a_restart(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    calling = asyncio.create_task(connection.api("INFO"))
    await asyncio.sleep(0)
    own_server.start()
    assert b"streams" in await asyncio.wait_for(calling, 30)


async def test_an_api_call_whose_reply_was_lost_is_repeated(proxy: TcpProxy, open_connection: OpenConnection) -> None:
    connection = await open_connection(proxy.url)
    proxy.drops_replies = True
    calling = asyncio.create_task(connection.api("INFO"))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    proxy.cut()
    assert b"streams" in await asyncio.wait_for(calling, 30)


# Opening


async def test_opening_fails_at_its_deadline_without_printing_the_password() -> None:
    port = free_port()
    connection = Connection(ConnectionSettings((f"nats://somebody:hunter2@127.0.0.1:{port}",)))
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}: ConnectionRefusedError") as caught:
        await connection.open(deadline=0.3)
    printed = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in printed and "somebody" not in printed
    assert not connection.is_up


async def test_a_wrong_password_is_named_as_the_reason_but_not_printed(own_server: Server) -> None:
    address = own_server.url.rpartition("@")[2]
    connection = Connection(ConnectionSettings((f"nats://postroad:hunter2@{address}",)))
    with pytest.raises(EngineUnavailable, match="Authorization Violation") as caught:
        await connection.open(deadline=0.3)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_opening_waits_for_a_server_that_is_starting(own_server: Server) -> None:
    own_server.kill()
    connection = Connection(ConnectionSettings((own_server.url,)))
    opening = asyncio.create_task(connection.open(deadline=10))
    done, _ = await asyncio.wait({opening}, timeout=0.2)
    assert not done
    own_server.start()
    await asyncio.wait_for(opening, 30)
    assert connection.is_up
    await connection.close()


async def test_a_server_below_the_minimum_version_is_rejected(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.jetstream.connection.VERSION_FLOOR", (99, 0))
    connection = Connection(ConnectionSettings((engine_url,)))
    with pytest.raises(EngineRefused, match="too old"):
        await connection.open()
    assert not connection.is_up
    await connection.close()


def test_the_password_is_not_in_any_representation() -> None:
    settings = ConnectionSettings(("nats://postroad:hunter2@127.0.0.1:1",))
    assert "hunter2" not in repr(settings) + repr(Connection(settings).settings) + str(settings)


def test_the_minimum_version_is_the_documented_one() -> None:
    assert connection.VERSION_FLOOR == (2, 12)


async def test_a_permanently_closed_connection_is_reported(own_server: Server, open_connection: OpenConnection) -> None:
    """As after an error of the credentials, which no reconnect repairs; a worker must then restart."""
    connection = await open_connection(own_server.url)
    watching = asyncio.create_task(connection.raise_when_closed())

    connection._client.close()

    async with asyncio.timeout(30):
        with pytest.raises(EngineUnavailable):
            await watching


async def test_a_reply_callback_that_raises_does_not_end_the_replies(engine_url: str, open_connection: OpenConnection) -> None:
    opened = await open_connection(engine_url)
    called: list[object] = []

    def raising(reply: object) -> None:
        called.append(reply)
        raise asyncio.CancelledError

    opened.send(encode_plain("$JS.API.INFO", b"", opened.expect_callback(raising)))
    await eventually(lambda: called)
    assert (await opened.request("$JS.API.INFO", timeout=10)).data


async def test_the_engine_that_tests_share_is_started_again_if_it_ends(
    own_server: Server, open_connection: OpenConnection, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    with own_server.kept_running(report):
        first = own_server.process
        own_server.kill()
        await eventually(lambda: own_server.process is not first and own_server._is_listening())
        await (await open_connection(own_server.url)).request("$JS.API.INFO")
    assert "ended with -9" in report.read_text() and "Server is ready" in report.read_text()


async def test_the_engine_that_tests_share_is_started_again_if_it_does_not_answer(
    own_server: Server, open_connection: OpenConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(servers, "_ASK_SECONDS", 0.0)
    report = tmp_path / "report"
    with own_server.kept_running(report):
        first = own_server.process
        assert first is not None
        first.send_signal(signal.SIGSTOP)
        await eventually(lambda: "ShdPnd:\t0000000000000020" in Path(f"/proc/{first.pid}/status").read_text())  # SIGABRT
        first.send_signal(signal.SIGCONT)
        await eventually(lambda: own_server.process is not first and own_server._is_listening())
        await (await open_connection(own_server.url)).request("$JS.API.INFO")
    assert "SIGABRT" in report.read_text() and "goroutine" in report.read_text()
