"""Receivers of commands: handlers by command name, for a worker of the target's queue.

receiver = CommandReceiver()

@receiver("post-message")
async def post(command: ReceivedCommand) -> None:
    ...

await Worker(postroad, "bot-commands", receiver.handle).run()
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from postroad.api.commands import ID_HEADER, NAME_HEADER, SENT_AT_HEADER, SOURCE_HEADER, TARGET_HEADER
from postroad.api.queues import Message
from postroad.client.worker.outcomes import DeadLetter

H = TypeVar("H", bound="Callable[[ReceivedCommand], Any]")


@dataclass(frozen=True, slots=True)
class ReceivedCommand:
    """A delivered command. `source` was set by the dispatcher from the sender's credential, `<tenant>/<service>`."""

    id: str
    source: str
    target: str
    name: str
    payload: Any
    sent_at: str
    message: Message


def received_command(message: Message) -> ReceivedCommand | None:
    """The command in a message, None if the message is not a command."""
    headers = message.headers or {}
    if not all(name in headers for name in (ID_HEADER, SOURCE_HEADER, NAME_HEADER)):
        return None
    return ReceivedCommand(
        headers[ID_HEADER],
        headers[SOURCE_HEADER],
        headers.get(TARGET_HEADER, ""),
        headers[NAME_HEADER],
        message.payload,
        headers.get(SENT_AT_HEADER, ""),
        message,
    )


class CommandReceiver:
    """Calls the handler of each command. `handle` is the handler of a `Worker` (coroutines) or `SyncWorker` (functions).

    A message without a receiver is moved to the dead letters.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[ReceivedCommand], Any]] = {}

    def __call__(self, name: str) -> Callable[[H], H]:
        """Register a handler. Raises ValueError if the command has one."""

        def register(handler: H) -> H:
            if name in self._handlers:
                raise ValueError(f"the command {name!r} has a receiver")
            self._handlers[name] = handler
            return handler

        return register

    def handle(self, message: Message) -> Any:
        """The result of the handler, an awaitable if it is a coroutine function. Raises DeadLetter without one."""
        command = received_command(message)
        if command is None:
            raise DeadLetter("the message is not a command")
        handler = self._handlers.get(command.name)
        if handler is None:
            raise DeadLetter(f"no receiver for the command {command.name!r}")
        return handler(command)
