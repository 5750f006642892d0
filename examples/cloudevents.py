"""CloudEvents from a topic to a queue: published once, received with all attributes.

POSTROAD_KEY=… python examples/cloudevents.py
"""

import os

from postroad.client import Postroad
from postroad.client.cloudevents import cloud_event

TOPIC, QUEUE = "example-shop-events", "example-shop-inbox"
EVENT = {
    "specversion": "1.0",
    "id": "order-5",
    "source": "https://shop.example/eu",
    "type": "com.example.order.created",
    "subject": "orders/5",
    "time": "2027-01-31T12:00:00Z",
    "priority": 3,
    "datacontenttype": "application/json",
    "data": {"total": 12.5},
}


def main() -> None:
    with Postroad(os.environ.get("POSTROAD_URL"), os.environ.get("POSTROAD_KEY")) as postroad:
        postroad.topics.put(TOPIC)
        postroad.queues.put(QUEUE)
        subscription = postroad.subscriptions.create(TOPIC, "queue", queue=QUEUE)
        try:
            first = postroad.topics.publish_event(TOPIC, EVENT)
            again = postroad.topics.publish_event(TOPIC, EVENT)  # after a lost response, for example
            print(f"published {first.subject} once: {first.sequence == again.sequence}")
            [message] = postroad.queues.pull(QUEUE, wait_ms=20_000).messages
            received = cloud_event(message, QUEUE)
            print(f"received {received['type']} from {received['source']}, all attributes: {received == EVENT}")
            postroad.queues.ack(QUEUE, message)
            channels = postroad.asyncapi.get()["channels"]
            print(f"AsyncAPI describes both: {ending(channels, TOPIC) and ending(channels, QUEUE)}")
        finally:
            postroad.subscriptions.delete(subscription.id)
            postroad.topics.delete(TOPIC)
            postroad.queues.delete(QUEUE)


def ending(channels: dict[str, object], name: str) -> bool:
    return any(key.endswith(f".{name}") for key in channels)


if __name__ == "__main__":
    main()
