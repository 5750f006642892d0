"""Runs a command for each message. Only `postroad worker` imports this module, as it needs the client and asyncio."""

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
_STDERR_SECONDS = 1.0  # after the command has ended: a process it left in the background may hold the pipe open


def run_worker(client: Postroad, queue: str, command: str, on_end: Callable[[Ended], None], options: WorkerOptions) -> None:
    """Consume the queue until a signal arrives or, with `once`, the queue is empty."""
    with echo_warnings():
        asyncio.run(_consume(client, queue, command, on_end, options))


async def _consume(client: Postroad, queue: str, command: str, on_end: Callable[[Ended], None], options: WorkerOptions) -> None:
    async def handle(message: Message) -> None:
        code, last_line = await _run(command, bytes(message.raw_payload), _environment(queue, message))
        if code == 0:
            return
        reason = last_line or (f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        raise DeadLetter(reason) if code == DEAD_LETTER else Retry(reason=reason)

    async with client.as_async() as async_client:
        await Worker(async_client, queue, handle, on_end=on_end, **options).run()


def _environment(queue: str, message: Message) -> dict[str, str]:
    variables = {
        "POSTROAD_MESSAGE_ID": message.message_id,
        "POSTROAD_JOB_ID": message.job_id,
        "POSTROAD_ATTEMPT": str(message.attempt),
        "POSTROAD_QUEUE": queue,
        "POSTROAD_CORRELATION_ID": message.correlation_id or "",
        "POSTROAD_HEADERS": to_json(message.headers).decode(),
    }
    return child_environment() | {name: value.replace("\0", "") for name, value in variables.items()}


async def _run(command: str, payload: bytes, environment: dict[str, str]) -> tuple[int, str]:
    """Run the command; returns its exit code (negative: the signal that killed it) and the last line of its standard error.

    The command runs in its own session: Ctrl-C reaches the worker alone, and the command's children can be ended with it.
    """
    # An own pipe: asyncio's would be waited for until every background process that inherited it has ended.
    read_end, write_end = os.pipe()
    try:
        relay = asyncio.create_task(_relay_stderr(read_end))
        process = await asyncio.create_subprocess_exec(
            *["/bin/sh", "-c", command],
            stdin=asyncio.subprocess.PIPE,
            stderr=write_end,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(write_end)
    feed = asyncio.create_task(_feed(process, payload))
    try:
        code = await process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STDERR_SECONDS):
                return code, await relay
        return code, ""
    except asyncio.CancelledError:
        await _terminate(process)
        raise
    finally:
        feed.cancel()
        relay.cancel()
        await asyncio.gather(feed, relay, return_exceptions=True)


async def _feed(process: asyncio.subprocess.Process, payload: bytes) -> None:
    """Write the payload to standard input. A command that ends without reading it is no error."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(payload)
            await process.stdin.drain()
        process.stdin.close()


async def _relay_stderr(descriptor: int) -> str:
    """Copy the command's standard error to ours; returns its last line that is not blank."""
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


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """End the command and its children: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_SECONDS):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
