"""Running a command for each message. Imported by `postroad worker` alone: it takes the client and asyncio."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import typer

from postroad.cli.output import echo_warnings, to_json
from postroad.cli.profiles import child_environment
from postroad.client import Message, Postroad
from postroad.client.worker import DeadLetter, Ended, Retry, Worker, WorkerOptions

DEAD_LETTER = 100
_LINE_MAX = 64 * 1024
_KILL_AFTER_SECONDS = 3.0
_LAST_WORDS_SECONDS = 1.0


def work_off(client: Postroad, queue: str, command: str, tell: Callable[[Ended], None], options: WorkerOptions) -> None:
    """Until a signal comes or, with `once`, the queue is empty."""
    with echo_warnings("postroad.runtime.worker"):
        asyncio.run(_work(client, queue, command, tell, options))


async def _work(client: Postroad, queue: str, command: str, tell: Callable[[Ended], None], options: WorkerOptions) -> None:
    async def handle(message: Message) -> None:
        code, last_words = await _run(command, bytes(message.raw_payload), _environment(queue, message))
        if code == 0:
            return
        reason = last_words or (f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        raise DeadLetter(reason) if code == DEAD_LETTER else Retry(reason=reason)

    async with client.as_async() as awaited:
        await Worker(awaited, queue, handle, on_end=tell, **options).run()


def _environment(queue: str, message: Message) -> dict[str, str]:
    told = {
        "POSTROAD_MESSAGE_ID": message.message_id,
        "POSTROAD_JOB_ID": message.job_id,
        "POSTROAD_ATTEMPT": str(message.attempt),
        "POSTROAD_QUEUE": queue,
        "POSTROAD_CORRELATION_ID": message.correlation_id or "",
        "POSTROAD_HEADERS": to_json(message.headers).decode(),
    }
    return child_environment() | {name: value.replace("\0", "") for name, value in told.items()}


async def _run(command: str, payload: bytes, environment: dict[str, str]) -> tuple[int, str]:
    """Its exit code (negative: the signal that killed it) and the last line of its standard error.

    It is a session of its own: Ctrl-C is for the worker, and what it started can be ended with it.
    """
    reading, writing = os.pipe()  # not asyncio's: that one waits for everyone who has it, also for what is left in the background
    try:
        listening = asyncio.create_task(_listen(reading))
        process = await asyncio.create_subprocess_exec(
            *["/bin/sh", "-c", command],
            stdin=asyncio.subprocess.PIPE,
            stderr=writing,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(writing)
    feeding = asyncio.create_task(_feed(process, payload))
    try:
        code = await process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                return code, await listening
        return code, ""
    except asyncio.CancelledError:
        await _end(process)
        raise
    finally:
        feeding.cancel()
        listening.cancel()
        await asyncio.gather(feeding, listening, return_exceptions=True)


async def _feed(process: asyncio.subprocess.Process, payload: bytes) -> None:
    """A command need not read it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(payload)
            await process.stdin.drain()
        process.stdin.close()


async def _listen(descriptor: int) -> str:
    """Pass on what is written there; the last line of it that says something."""
    loop, last = asyncio.get_running_loop(), b""
    reader = asyncio.StreamReader(limit=_LINE_MAX)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb"))
    try:
        rest = b""
        while some := await reader.read(_LINE_MAX):
            typer.echo(some, err=True, nl=False)
            *lines, rest = (rest + some).split(b"\n")
            rest = rest[-_LINE_MAX:]
            last = next((line for line in reversed(lines) if line.strip()), last)
        return (rest if rest.strip() else last).decode("utf-8", "replace").strip()
    finally:
        transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """The command and all that it started: politely, and then not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_SECONDS):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
