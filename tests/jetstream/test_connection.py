import asyncio
import traceback
from collections.abc import Callable

import pytest
from nats.aio.msg import Msg
from tests.servers import Cable, OpenConnection, Server, restart
from tests.waiting import eventually

from postroad.jetstream import connection
from postroad.jetstream.api_errors import STREAM_NOT_FOUND, ApiFailure
from postroad.jetstream.connection import Connection, ConnectionLost, ConnectionSettings
from postroad.kernel.errors import EngineRefused, EngineUnavailable
from postroad.runtime.embedded_server import free_port


async def _echo(connection: Connection, subject: str) -> Callable[[], object]:
    async def answer(message: Msg) -> None:
        await connection.publish(message.reply, b"heard " + message.data)

    return await connection.subscribe(subject, answer)


# Asking and answering


async def test_a_request_gets_its_own_answer(
    connection: Connection, engine_url: str, open_connection: OpenConnection, name: str
) -> None:
    other = await open_connection(engine_url)
    await _echo(other, name)
    await other.request("$JS.API.INFO")  # so that the subscription is known
    answers = await asyncio.gather(*[connection.request(name, b"%d" % number) for number in range(100)])
    assert [answer.data for answer in answers] == [b"heard %d" % number for number in range(100)]


async def test_a_request_that_nobody_serves_is_told_so_at_once(connection: Connection, name: str) -> None:
    started = asyncio.get_running_loop().time()
    assert (await connection.request(name)).status == "503"
    assert asyncio.get_running_loop().time() - started < 1


async def test_a_request_that_is_not_answered_times_out(connection: Connection, name: str) -> None:
    async def silence(_message: Msg) -> None:
        pass

    stop = await connection.subscribe(name, silence)
    with pytest.raises(TimeoutError):
        await connection.request(name, timeout=0.05)
    await stop()


async def test_an_ended_subscription_hears_no_more(connection: Connection, name: str) -> None:
    heard: list[bytes] = []

    async def handler(message: Msg) -> None:
        heard.append(message.data)

    stop = await connection.subscribe(name, handler)
    await connection.publish(name, b"one")
    await eventually(lambda: heard == [b"one"])
    await stop()
    await connection.publish(name, b"two")
    assert (await connection.request(name)).status == "503"
    assert heard == [b"one"]


async def test_many_answers_come_in_order_until_forgotten(connection: Connection) -> None:
    inbox, answers = connection.expect_many()
    for number in range(10):
        await connection.publish(inbox, b"%d" % number)
    async with asyncio.timeout(5):
        received = [await answers.get() for _ in range(10)]
    assert [reply.data for reply in received if reply] == [b"%d" % number for number in range(10)]
    connection.forget(inbox)
    await connection.publish(inbox, b"late")
    await connection.request("$JS.API.INFO")
    assert answers.empty()


async def test_what_was_forgotten_is_not_answered(connection: Connection) -> None:
    inbox, future = connection.expect()
    connection.forget(inbox)
    await connection.publish(inbox, b"late")
    await connection.request("$JS.API.INFO")
    assert not future.done()


# Losing the server


async def test_whoever_waits_is_told_at_once_that_the_server_is_gone(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    waiting = [connection.expect()[1] for _ in range(10)]
    _, answers = connection.expect_many()
    own_server.kill()
    async with asyncio.timeout(2):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert await answers.get() is None
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 10
    assert not connection.is_up
    for ask in (connection.expect, connection.expect_many):
        with pytest.raises(ConnectionLost):
            ask()
    with pytest.raises(ConnectionLost):
        await connection.request("$JS.API.INFO")


async def test_a_link_is_back_soon_after_the_server_and_so_are_its_subscriptions(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await _echo(connection, name)
    calls: list[str] = []
    connection.on_reconnect(lambda: calls.append("kept"))
    forget = connection.on_reconnect(lambda: calls.append("taken back"))
    forget()
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    own_server.start()
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        await connection.wait_up()
    assert asyncio.get_running_loop().time() - started < 1
    assert calls == ["kept"]
    assert (await connection.request(name, b"again")).data == b"heard again"


async def test_a_link_comes_back_every_time(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    for _ in range(5):
        await restart(own_server, connection)
        assert (await connection.request("$JS.API.INFO")).status == ""


async def test_a_cut_line_is_noticed_and_dialled_again(cable: Cable, open_connection: OpenConnection) -> None:
    connection = await open_connection(cable.url)
    _, waiting = connection.expect()
    cable.cut()
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, 2)
    async with asyncio.timeout(5):
        await connection.wait_up()
    assert (await connection.request("$JS.API.INFO")).status == ""


async def test_a_closed_link_is_down_and_tells_who_waits(engine_url: str) -> None:
    connection = Connection(ConnectionSettings((engine_url,)))
    await connection.open()
    _, waiting = connection.expect()
    await connection.close()
    assert not connection.is_up
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(waiting, 1)


# JetStream API calls


async def test_an_api_error_keeps_its_code_or_comes_translated(connection: Connection, name: str) -> None:
    with pytest.raises(ApiFailure) as caught:
        await connection.api(f"STREAM.INFO.{name}")
    assert caught.value.error.err_code == STREAM_NOT_FOUND
    with pytest.raises(EngineRefused, match="stream not found"):
        await connection.call(f"STREAM.INFO.{name}")


async def test_an_api_call_that_nobody_serves_is_unavailable_when_its_time_is_up(connection: Connection) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(EngineUnavailable, match="stream: no answer") as caught:
        await connection.api("STREAM.NO.SUCH.CALL", timeout=0.3)
    assert asyncio.get_running_loop().time() - started < 1
    assert caught.value.retry_after


async def test_an_api_call_is_unavailable_while_the_server_is_away(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    own_server.kill()
    started = asyncio.get_running_loop().time()
    with pytest.raises(EngineUnavailable):
        await connection.api("INFO", timeout=0.3)
    assert asyncio.get_running_loop().time() - started < 1


async def test_an_api_call_outlasts_a_restart(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    calling = asyncio.create_task(connection.api("INFO"))
    await asyncio.sleep(0)
    own_server.start()
    assert b"streams" in await asyncio.wait_for(calling, 5)


async def test_an_api_call_whose_answer_is_lost_is_made_again(cable: Cable, open_connection: OpenConnection) -> None:
    connection = await open_connection(cable.url)
    cable.is_deaf = True
    calling = asyncio.create_task(connection.api("INFO"))
    await asyncio.wait_for(cable.swallowed.wait(), 5)
    cable.cut()
    assert b"streams" in await asyncio.wait_for(calling, 5)


# Opening


async def test_opening_gives_up_at_its_deadline_and_does_not_tell_the_password() -> None:
    port = free_port()
    connection = Connection(ConnectionSettings((f"nats://somebody:hunter2@127.0.0.1:{port}",)))
    started = asyncio.get_running_loop().time()
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}: ConnectionRefusedError") as caught:
        await connection.open(deadline=0.3)
    assert asyncio.get_running_loop().time() - started < 2
    told = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in told and "somebody" not in told
    assert not connection.is_up


async def test_a_wrong_password_is_named_as_the_reason_and_not_told(own_server: Server) -> None:
    address = own_server.url.rpartition("@")[2]
    connection = Connection(ConnectionSettings((f"nats://postroad:hunter2@{address}",)))
    with pytest.raises(EngineUnavailable, match="Authorization Violation") as caught:
        await connection.open(deadline=0.3)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_a_link_may_open_before_its_server_is_there(own_server: Server) -> None:
    own_server.kill()
    connection = Connection(ConnectionSettings((own_server.url,)))
    opening = asyncio.create_task(connection.open(deadline=10))
    done, _ = await asyncio.wait({opening}, timeout=0.2)
    assert not done
    own_server.start()
    await asyncio.wait_for(opening, 5)
    assert connection.is_up
    await connection.close()


async def test_a_server_below_the_floor_is_refused(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.jetstream.connection.VERSION_FLOOR", (99, 0))
    connection = Connection(ConnectionSettings((engine_url,)))
    with pytest.raises(EngineRefused, match="too old"):
        await connection.open()
    assert not connection.is_up
    await connection.close()


def test_a_link_in_a_log_or_a_trace_does_not_tell_the_password() -> None:
    settings = ConnectionSettings(("nats://postroad:hunter2@127.0.0.1:1",))
    assert "hunter2" not in repr(settings) + repr(Connection(settings).settings) + str(settings)


def test_the_floor_is_the_documented_one() -> None:
    assert connection.VERSION_FLOOR == (2, 12)


async def test_a_connection_that_the_server_ended_for_good_is_reported(
    own_server: Server, open_connection: OpenConnection
) -> None:
    """nats-py closes and does not come back after most errors that a server sends; a worker must then start anew."""
    connection = await open_connection(own_server.url)
    watching = asyncio.create_task(connection.raise_when_closed())

    await connection._nc.close()

    async with asyncio.timeout(5):
        with pytest.raises(EngineUnavailable):
            await watching
