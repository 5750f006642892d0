"""An order board: each customer sees the state of their own orders, live, in plain HTML and JavaScript.

POSTROAD_KEY=… python examples/board/serve.py        then open http://127.0.0.1:8087/customers/7

The key stays on this server. A page gets the orders as they are now, with the sequence that they are complete up to, and a token
that sees only the subjects of its customer; it reads on from that sequence, so nothing is missed between page and socket. `place`
and `advance` stand for the shop: they publish `customer.<customer>.<order>` events to a topic.
"""

import argparse
import os
import re
import uuid
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from postroad.client import Postroad, TopicGrant
from postroad.client.errors import PostroadError

URL = os.environ.get("POSTROAD_URL") or "http://127.0.0.1:8080"
PUBLIC_URL = os.environ.get("POSTROAD_PUBLIC_URL") or URL  # the URL for browsers
STATES = ("placed", "packed", "sent", "delivered")
BODY_BYTES_MAX = 4096
_PATH = re.compile(r"/customers/([0-9]{1,9})(/board|/token|/orders|/orders/[0-9a-f]{8}/advance)?")


class Board:
    """The shop's use of Postroad. Thread-safe."""

    def __init__(self, postroad: Postroad, topic: str, token_seconds: int) -> None:
        self._postroad, self._topic, self._token_seconds = postroad, topic, token_seconds
        postroad.topics.put(topic, retention_ms=30 * 86_400_000)

    def board(self, customer: str) -> dict[str, Any]:
        """The customer's orders, and the sequence of the last event that they include."""
        last = self._postroad.topics.get(self._topic).stats
        sequence = 0 if last is None else last.last_sequence
        orders: dict[str, dict[str, Any]] = {}
        for event in self._postroad.topics.messages(self._topic, subject=f"customer.{customer}.>"):
            if event.sequence <= sequence:
                orders[event.payload["order"]] = event.payload
        return {"url": PUBLIC_URL, "topic": self._topic, "sequence": sequence, "orders": list(orders.values())}

    def token(self, customer: str) -> dict[str, str]:
        """A token that sees this customer's subjects, whatever the page asks for."""
        grants = [TopicGrant(topic=self._topic, filter=(f"customer.{customer}.>",))]
        return {"token": self._postroad.tokens.create("live", grants=grants, expires_in_seconds=self._token_seconds).token}

    def place(self, customer: str, item: str) -> dict[str, Any]:
        return self._publish(customer, {"order": uuid.uuid4().hex[:8], "item": item, "state": STATES[0]})

    def advance(self, customer: str, order: str) -> dict[str, Any]:
        found = [event.payload for event in self._postroad.topics.messages(self._topic, subject=f"customer.{customer}.{order}")]
        if not found:
            raise Wrong("there is no such order")
        following = STATES[min(STATES.index(found[-1]["state"]) + 1, len(STATES) - 1)]
        return self._publish(customer, {**found[-1], "state": following})

    def _publish(self, customer: str, event: dict[str, Any]) -> dict[str, Any]:
        published = self._postroad.topics.publish(self._topic, f"customer.{customer}.{event['order']}", event)
        return {**event, "sequence": published.sequence}


class Wrong(Exception):
    """The request of the browser is invalid."""


class Handler(BaseHTTPRequestHandler):
    """The customer is part of the path; in a shop it would come from the login."""

    protocol_version = "HTTP/1.1"

    def __init__(self, board: Board, *rest: Any) -> None:
        self._board = board
        super().__init__(*rest)

    def do_GET(self) -> None:
        found = _PATH.fullmatch(self.path)
        if found is None or found[2] not in (None, "/board"):
            self._answer(HTTPStatus.NOT_FOUND, {"error": "open /customers/7"})
        elif found[2] is None:
            self._send(HTTPStatus.OK, (Path(__file__).parent / "index.html").read_bytes(), "text/html; charset=utf-8")
        else:
            self._respond(lambda: self._board.board(found[1]))

    def do_POST(self) -> None:
        found = _PATH.fullmatch(self.path)
        try:
            body = self._body()
        except Wrong as fault:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(fault)})
            return
        if found is None or found[2] in (None, "/board"):
            self._answer(HTTPStatus.NOT_FOUND, {"error": "unknown path"})
        elif found[2] == "/token":
            self._respond(lambda: self._board.token(found[1]))
        elif found[2] == "/orders":
            self._respond(lambda: self._board.place(found[1], str(body.get("item") or "something")[:80]))
        else:
            self._respond(lambda: self._board.advance(found[1], found[2].split("/")[2]))

    def _respond(self, make: Any) -> None:
        try:
            self._answer(HTTPStatus.OK, make())
        except Wrong as fault:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(fault)})
        except PostroadError as problem:  # the page tries again
            self._answer(HTTPStatus.BAD_GATEWAY, {"error": problem.title})

    def _body(self) -> dict[str, Any]:
        """Accept only JSON, because a form on another site cannot send it."""
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            raise Wrong("the body is too long or has no Content-Length")
        data = self.rfile.read(int(length))
        if self.headers.get_content_type() != "application/json":
            raise Wrong("send JSON")
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise Wrong("send a JSON object") from fault

    def _answer(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        self._send(status, msgspec.json.encode(answer), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, media: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    options = argparse.ArgumentParser(description="Serve an order board.")
    options.add_argument("--port", type=int, default=8087)
    options.add_argument("--topic", default="board-orders")
    options.add_argument("--token-seconds", type=int, default=900, help="how long a token of a page is valid")
    chosen = options.parse_args()
    with Postroad(URL) as postroad:
        board = Board(postroad, chosen.topic, chosen.token_seconds)
        server = ThreadingHTTPServer(("127.0.0.1", chosen.port), partial(Handler, board))
        print(f"open http://127.0.0.1:{server.server_port}/customers/7 (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


if __name__ == "__main__":
    main()
