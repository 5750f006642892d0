"""A receiver of deliveries with the standard library and `postroad.webhooks`."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from postroad.webhooks import WebhookInvalid, verify

SECRET = os.environ["SECRET"]
seen: set[str] = set()  # a real service remembers ids in its database, together with what it did


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            delivery = verify(SECRET, dict(self.headers.items()), body)
        except WebhookInvalid as problem:
            self.answer(400, f"{problem}\n")
            return
        if delivery.id not in seen:  # an attempt may be repeated
            seen.add(delivery.id)
            print(f"{delivery.topic} {delivery.subject} {delivery.sequence} {body.decode()}", flush=True)
        self.answer(200, "ok\n")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_arguments: object) -> None:
        """Print deliveries only."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver).serve_forever()
