"""`client.commands`: send governed commands. Services, routes and grants have namespaces of their own."""

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.api.commands import CommandAccepted, CommandBatchResult
from postroad.client.calls import AsyncNamespace, Call, Content, SyncNamespace, operation
from postroad.client.command_signer import CommandSender, NewCommand
from postroad.client.encoding import given
from postroad.client.generated.commands import CommandsCalls

if TYPE_CHECKING:
    from postroad.client.transport import AsyncTransport, SyncTransport


class CommandCalls(CommandsCalls):
    @operation
    def send_envelope(self, envelope: bytes | str, *, service: str | None = None) -> Call[CommandAccepted]:
        """Send an envelope that is signed already, with the key of the client. `service` is the sender.

        Raises CommandInvalid, AclDenied, SourceRefused, RouteMissing, DeliveryFailure.
        """
        data = envelope.encode() if isinstance(envelope, str) else bytes(envelope)
        return Call(
            method="POST",
            path="/v1/commands",
            headers=given(**{"X-Postroad-Service": service}),
            body=Content(data, "application/json"),
            response=CommandAccepted,
        )

    @operation
    def send_envelopes(self, envelopes: Sequence[bytes], *, service: str | None = None) -> Call[CommandBatchResult]:
        """Send up to 100 envelopes that are signed already; the result has an outcome for each."""
        return Call(
            method="POST",
            path="/v1/commands/batch",
            headers=given(**{"X-Postroad-Service": service}),
            body={"commands": [msgspec.Raw(bytes(one)) for one in envelopes]},
            response=CommandBatchResult,
        )


def _command(target: str, name: str, payload: Any, command_id: str | None) -> NewCommand:
    return NewCommand(target=target, name=name, payload=payload, **({} if command_id is None else {"id": command_id}))


class Commands(CommandCalls, SyncNamespace):
    def __init__(self, transport: "SyncTransport") -> None:
        super().__init__(transport)
        self._sender = CommandSender()

    def send(
        self, service: str, target: str, name: str, payload: Any = None, *, command_id: str | None = None
    ) -> CommandAccepted:
        """Send a command as a service that trusts the client's key, and return once it is in the queue of the target.

        Gets an emit token, signs, polls secrets, and repeats with the same id where that helps. `target` is `<service>` or
        `<tenant>/<service>`. Raises AclDenied, RouteMissing, SourceRefused, CommandInvalid, DeliveryFailure.
        """
        return self._transport.run_sequence(self._sender.send(service, _command(target, name, payload, command_id)))

    def send_batch(self, service: str, commands: Sequence[NewCommand]) -> CommandBatchResult:
        """Send up to 100 commands; the result has an outcome for each."""
        return self._transport.run_sequence(self._sender.send_batch(service, commands))


class AsyncCommands(CommandCalls, AsyncNamespace):
    def __init__(self, transport: "AsyncTransport") -> None:
        super().__init__(transport)
        self._sender = CommandSender()

    def send(
        self, service: str, target: str, name: str, payload: Any = None, *, command_id: str | None = None
    ) -> Awaitable[CommandAccepted]:
        """Like `Commands.send`."""
        return self._transport.run_sequence(self._sender.send(service, _command(target, name, payload, command_id)))

    def send_batch(self, service: str, commands: Sequence[NewCommand]) -> Awaitable[CommandBatchResult]:
        """Like `Commands.send_batch`."""
        return self._transport.run_sequence(self._sender.send_batch(service, commands))
