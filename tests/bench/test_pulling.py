"""The consumers of `make bench` count what a server gave them, and nothing else."""

import asyncio
import threading

import pytest
from benchmarks.peers.peer import Queue, Request
from benchmarks.pulling import Pulled, pulled


class Server:
    """Gives out `waiting` messages, each to be acknowledged; if told to, every third acknowledgement fails, and every answer ends
    its connection.
    """

    def __init__(self, waiting: int, *, is_failing: bool = False, is_closing: bool = False) -> None:
        self.waiting, self.acked, self._is_failing, self._is_closing = waiting, 0, is_failing, is_closing
        self.each = 1  # messages in one answer
        self._loop = asyncio.new_event_loop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            while await reader.readline() != b"\r\n":
                pass
            status, body = 200, b"{}"
            if b"/ack/" in head:
                self.acked += 1
                status = 409 if self._is_failing and self.acked % 3 == 0 else 200
            elif self.waiting:
                self.waiting -= self.each
                body = b"".join(b'{"id":%d}' % (self.waiting + number) for number in range(self.each))
            closing = b"Connection: close\r\n" if self._is_closing else b""
            writer.write(b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n%b" % (status, closing, len(body), body))
            if self._is_closing:
                break
        writer.close()

    def __enter__(self) -> Queue:
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        port = self._server.sockets[0].getsockname()[1]
        return Queue(
            f"http://127.0.0.1:{port}",
            publish=Request("POST", "/"),
            pull=Request("GET", "/pull"),
            taken=lambda body: body.count(b"id"),
            ack=lambda body: Request("GET", f"/ack/{body.decode()[6:-1]}"),
        )

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        open_ones = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


def messages_of(outcome: Pulled) -> int:
    """Of a queue that ran empty."""
    assert outcome.dry_after is not None
    return round(outcome.load.per_second * outcome.dry_after)


@pytest.mark.parametrize("is_closing", [False, True], ids=["one connection", "a connection for each request"])
def test_every_message_that_was_taken_and_acknowledged_counts_once(is_closing: bool) -> None:
    server = Server(100, is_closing=is_closing)
    with server as queue:
        outcome = pulled(queue, 4, seconds=30, warm=0)
    assert (messages_of(outcome), server.acked, outcome.load.failed) == (100, 100, 0)
    assert outcome.empty == 40  # ten for each of the four, which then give up


def test_a_refused_acknowledgement_does_not_count() -> None:
    with Server(90, is_failing=True) as queue:
        outcome = pulled(queue, 4, seconds=30, warm=0)
    assert (messages_of(outcome), outcome.load.failed) == (60, 30)


def test_messages_that_are_pulled_together_count_one_by_one() -> None:
    server = Server(100)
    server.each = 10
    with server as queue:
        outcome = pulled(queue, 4, seconds=30, warm=0)
    assert (messages_of(outcome), server.acked) == (100, 10)


def test_a_queue_that_runs_empty_while_it_warms_up_is_measured_as_long_as_it_had_messages() -> None:
    with Server(100) as queue:
        outcome = pulled(queue, 4, seconds=30, warm=30)
    assert messages_of(outcome) == 100


def test_a_queue_with_enough_messages_did_not_run_empty() -> None:
    with Server(10**9) as queue:
        outcome = pulled(queue, 1, seconds=0.2, warm=0)
    assert outcome.dry_after is None


def test_a_queue_without_any_message_has_the_rate_zero() -> None:
    with Server(0) as queue:
        outcome = pulled(queue, 1, seconds=30, warm=0)
    assert (outcome.load.per_second, outcome.dry_after) == (0, 0)
