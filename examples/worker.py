"""A worker with nothing but the standard library: publish some orders, pull them, work, acknowledge.

POSTROAD_KEY=… python examples/worker.py
"""

import json
import os
import urllib.request
from typing import Any

URL = os.environ.get("POSTROAD_URL", "http://127.0.0.1:8080")
KEY = os.environ["POSTROAD_KEY"]


def call(path: str, body: object) -> Any:
    request = urllib.request.Request(
        URL + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def publish_orders(count: int) -> None:
    for number in range(count):
        order = {"payload": {"order": number, "total": f"{number * 9.9:.2f}"}, "idempotencyKey": f"order-{number}"}
        print("published", call("/v1/queues/orders/messages", order)["messageId"])


def work_off(count: int) -> None:
    """Take a few at a time, and acknowledge each only when it is done: what fails half-way comes back by itself."""
    done: set[int] = set()
    while len(done) < count:
        for message in call("/v1/queues/orders/pull", {"maxMessages": 5, "waitMs": 5000})["messages"]:
            done.add(message["payload"]["order"])
            call("/v1/queues/orders/ack", {"receiptId": message["receiptId"]})
            print("done", message["payload"]["order"], "attempt", message["attempt"])


if __name__ == "__main__":
    publish_orders(7)
    work_off(7)
