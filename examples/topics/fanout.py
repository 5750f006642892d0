"""One topic, two subscriptions: each order is posted to an HTTP endpoint, and stored in a queue for workers.

The endpoint is a small server in this program, so the installation must allow deliveries to this machine:
POSTROAD_OUTBOUND_ALLOW=127.0.0.0/8.

POSTROAD_KEY=… python examples/topics/fanout.py
"""

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from postroad.client import Postroad
from postroad.webhooks import Delivery, WebhookInvalid, verify

TOPIC, QUEUE = "fanout-orders", "fanout-invoices"
SECRET = "a secret that both sides know"
EVENTS = [("orders.eu.created", {"id": 1}), ("orders.eu.paid", {"id": 1}), ("orders.us.created", {"id": 2})]

deliveries: queue.Queue[Delivery] = queue.Queue()


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            deliveries.put(verify(SECRET, dict(self.headers.items()), body))
            self.send_response(204)
        except WebhookInvalid:
            self.send_response(400)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Print deliveries only."""


def subscribe(postroad: Postroad, port: int) -> None:
    """Both subscriptions are independent: each has its own patterns, progress, retries and dead letters."""
    postroad.subscriptions.create(
        TOPIC,
        "http_push",
        url=f"http://127.0.0.1:{port}/orders",
        secret=SECRET,
        filter=["orders.>"],
        ordering="key",
    )
    postroad.subscriptions.create(TOPIC, "queue", queue=QUEUE, filter=["orders.*.paid"])


def pushed() -> list[str]:
    """The subjects that arrive at the endpoint; a repetition is ignored by its id."""
    found: dict[str, str] = {}
    while len(found) < len(EVENTS):
        one = deliveries.get(timeout=30)
        found[one.id] = f"{one.sequence} {one.subject}"
    return sorted(found.values())


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Postroad() as postroad:
        postroad.topics.put(TOPIC)
        postroad.queues.put(QUEUE)
        subscribe(postroad, server.server_port)
        for subject, payload in EVENTS:
            postroad.topics.publish(TOPIC, subject, payload)

        print("pushed:", ", ".join(pushed()))
        for message in postroad.queues.pull(QUEUE, wait_ms=20_000).messages:
            print("in the queue:", message.headers["X-MQ-Subject"], message.payload)
            postroad.queues.ack(QUEUE, message)

        postroad.topics.delete(TOPIC, cascade=True)
        postroad.queues.delete(QUEUE)
        print("deleted")
    server.shutdown()


if __name__ == "__main__":
    main()
