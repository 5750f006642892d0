"""`postroad subscriptions listen`: a receiver on this machine."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, connected
from postroad.webhooks import Delivery, WebhookInvalid, verify

if TYPE_CHECKING:
    from postroad.client import Postroad

subscriptions = typer.Typer(help="Messages of topics, delivered to endpoints and queues.", no_args_is_help=True)


@subscriptions.command("listen")
def listen(
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    patterns: Annotated[list[str] | None, typer.Option("--filter", help="Subject pattern; can be repeated.")] = None,
    start_from: Annotated[str, typer.Option("--start-from", help="`new` messages only, or `all` that the topic has.")] = "new",
    host: Annotated[str, typer.Option(help="Address to listen on, as the server can reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses one.", min=0, max=65535)] = 0,
    count: Annotated[int, typer.Option(help="End after so many messages; 0: with Ctrl-C.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Receive the messages of a topic on this machine, verify their signatures and print them.

    Creates a subscription for as long as it runs. The server must be able to reach the address and be allowed to call it:
    POSTROAD_OUTBOUND_ALLOW=127.0.0.0/8 of a server on the same machine.
    """
    with connected() as client, _listening(host, port, count, as_json) as receiver:
        url = f"http://{host}:{receiver.server_port}/"
        with _subscribed(client, topic, url, patterns or [">"], start_from) as secret:
            receiver.secret = secret
            typer.echo(f"listening on {url} for messages of {topic}; Ctrl-C ends", err=True)
            with contextlib.suppress(KeyboardInterrupt):
                receiver.serve_forever(poll_interval=0.1)


class _Receiver(ThreadingHTTPServer):
    secret = ""

    def __init__(self, address: tuple[str, int], count: int, as_json: bool) -> None:
        super().__init__(address, _Handler)
        self._count, self._as_json = count, as_json
        self._seen: set[str] = set()

    def print(self, delivery: Delivery) -> None:
        """Print a delivery once, however often it is attempted."""
        if delivery.id in self._seen:
            return
        self._seen.add(delivery.id)
        text = delivery.body.decode("utf-8", "replace")
        if self._as_json:
            shown = {"sequence": delivery.sequence, "subject": delivery.subject, "attempt": delivery.attempt, "body": text}
            typer.echo(json.dumps(shown, ensure_ascii=False))
        else:
            typer.echo(f"{delivery.sequence}\t{delivery.subject}\t{text}")
        if self._count and len(self._seen) >= self._count:
            threading.Thread(target=self.shutdown).start()  # it waits for the loop that serves this request


class _Handler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            delivery = verify(self.server.secret, dict(self.headers.items()), body)
        except WebhookInvalid as problem:
            typer.echo(f"refused: {problem}", err=True)
            self._respond(400)
            return
        self._respond(200)
        self.server.print(delivery)

    def _respond(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Print deliveries only."""


@contextlib.contextmanager
def _listening(host: str, port: int, count: int, as_json: bool) -> Iterator[_Receiver]:
    try:
        receiver = _Receiver((host, port), count, as_json)
    except OSError as problem:
        raise typer.BadParameter(f"cannot listen on {host}:{port}: {problem.strerror}") from problem
    with receiver:
        yield receiver


@contextlib.contextmanager
def _subscribed(client: "Postroad", topic: str, url: str, patterns: list[str], start_from: str) -> Iterator[str]:
    """A subscription that is deleted at the end. Yields its secret."""
    made = client.subscriptions.create(topic, "http_push", url=url, filter=patterns, start_from=start_from)
    try:
        yield made.secret or ""
    finally:
        client.subscriptions.delete(made.id)
