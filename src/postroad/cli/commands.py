"""`postroad commands send`, `sign`, `verify` and `show`."""

import sys
from typing import Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, connected, exit_on_error, show
from postroad.cli.times import Since, ago

commands = typer.Typer(help="Governed commands between services: send, sign, verify and find.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(help="`<service>` of the own tenant, or `<tenant>/<service>`.")]
Name = Annotated[str, typer.Argument(help="Name of the command.")]
Payload = Annotated[str, typer.Argument(help="Payload as JSON; `-` reads standard input.")]
CommandId = Annotated[str | None, typer.Option("--id", help="UUID of the command; a new one by default.", show_default=False)]
Secret = Annotated[
    str,
    typer.Option(help="Secret of the service, as GET /v1/tenant-config returns it.", envvar="POSTROAD_COMMAND_SECRET"),
]


@commands.command("send")
def send(
    target: Target,
    name: Name,
    payload: Payload = "null",
    service: Annotated[str, typer.Option("--as", help="The service that sends; it must trust the key.")] = ...,  # type: ignore[assignment]
    command_id: CommandId = None,
    as_json: AsJson = False,
) -> None:
    """Sign and send a command. Returns once it is in the queue of the target."""
    value = _payload(payload)
    with connected() as client:
        done = client.commands.send(service, target, name, value, command_id=command_id)
        show(done, as_json, ("command", "message", "path"), lambda one: [one.command_id, one.message_id, one.path])


@commands.command("sign")
def sign(
    target: Target,
    name: Name,
    payload: Payload = "null",
    secret: Secret = ...,  # type: ignore[assignment]
    version_id: Annotated[str, typer.Option(help="Version of the secret.")] = "hmac-v1",
    source: Annotated[
        str | None, typer.Option(help="`<tenant>/<service>`: adds the signature that covers id, sender and target.")
    ] = None,
    command_id: CommandId = None,
) -> None:
    """Print a signed envelope, without a server. It is valid for a minute."""
    from postroad.client.command_signer import NewCommand, envelope

    more = {} if command_id is None else {"id": command_id}
    command = NewCommand(target=target, name=name, payload=_payload(payload), **more)
    typer.echo(envelope(command, secret, version_id, source=source).decode())


@commands.command("verify")
def verify(
    secret: Secret = ...,  # type: ignore[assignment]
    source: Annotated[str | None, typer.Option(help="`<tenant>/<service>`: needed if there is a signature.")] = None,
    file: Annotated[typer.FileBinaryRead | None, typer.Option(help="File with the envelope; standard input by default.")] = None,
) -> None:
    """Check the HMAC and the signature of an envelope, without a server. The time is not checked."""
    import hmac

    import msgspec

    from postroad.api.command_signing import command_signature, payload_hmac
    from postroad.api.commands import CommandEnvelope

    with exit_on_error():
        try:
            found = msgspec.json.decode((file or sys.stdin.buffer).read(), type=CommandEnvelope)
        except msgspec.DecodeError as fault:
            raise ValueError(f"not an envelope: {fault}") from fault
        metadata, command = found.metadata, found.command
        payload = bytes(command.payload)
        if not hmac.compare_digest(payload_hmac(secret.encode(), payload, metadata.timestamp, command.name), metadata.hmac):
            raise ValueError("the hmac does not match")
        if isinstance(metadata.signature, str):
            if source is None:
                raise ValueError("the envelope has a signature: name the sender with --source <tenant>/<service>")
            expected = command_signature(
                secret.encode(),
                command_id=metadata.id,
                source=source,
                target=command.target,
                name=command.name,
                timestamp=metadata.timestamp,
                payload=payload,
            )
            if not hmac.compare_digest(expected, metadata.signature):
                raise ValueError("the signature does not match")
        typer.echo("valid")


@commands.command("show")
def show_command(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the command.")],
    since: Since = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show each outcome of a command of the last 14 days, as far as they are stored, with its payload."""
    from postroad.cli.rendering import show_item

    with connected() as client:
        found = list(client.commands.find(command_id=command_id, since=ago(since) if since else None, body_max=65_536))
        for one in found:
            show_item(one, as_json, wide=wide)
        available = None if found else client.commands.find_page(page_size=1).available_from
    if not found:
        since_text = f" since {available}" if available else ""
        typer.echo(f"no command {command_id} is stored{since_text}; earlier ones are in the lake of the pipeline", err=True)
        raise typer.Exit(1)


def _payload(text: str) -> Any:
    import json

    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as fault:
        raise typer.BadParameter(f"the payload is not JSON: {fault}") from fault
