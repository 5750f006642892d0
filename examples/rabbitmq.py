"""A native program and Postroad share one queue of RabbitMQ: each reads what the other publishes.

POSTROAD_KEY=… RABBITMQ_URL=amqp://… python examples/rabbitmq.py

The installation needs POSTROAD_RABBITMQ_URL. The native program uses pika and does not know Postroad.
"""

import json
import os
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel

from postroad.client import Postroad

QUEUE = "example-rabbitmq"


def read_natively(channel: BlockingChannel, queue: str) -> tuple[int, pika.BasicProperties, object]:
    """Wait for a message: its delivery tag, its properties and what it says."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=60):
        channel.cancel()
        if method is None:
            raise SystemExit("no message arrived in RabbitMQ")
        return method.delivery_tag, properties, json.loads(body)
    raise SystemExit("the channel was closed")


def main() -> None:
    postroad = Postroad()
    postroad.queues.put(QUEUE, backend="rabbitmq")
    shown = postroad.queues.get(QUEUE)
    print(f"the queue is in {shown.settings.backend} and supports {', '.join(shown.features)}")
    native_name = f"postroad.{postroad.keys.whoami().tenant}.{QUEUE}"
    connection = pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"]))
    channel = connection.channel()

    published = postroad.queues.publish(QUEUE, {"order": 1}, headers={"shop": "north"})
    tag, properties, order = read_natively(channel, native_name)
    assert properties.message_id == published.message_id
    print(f"the native program read {order} of the shop {properties.headers['shop']}")
    channel.basic_ack(tag)

    channel.basic_publish("", native_name, b'{"order": 2}', pika.BasicProperties(headers={"shop": "south"}, delivery_mode=2))
    [message] = postroad.queues.pull(QUEUE, wait_ms=20_000).messages
    print(f"Postroad read {message.payload} of the shop {message.headers['shop']}, attempt {message.attempt}")
    postroad.queues.ack(QUEUE, message)
    print(f"its job is {postroad.jobs.get(message.job_id).status}")

    postroad.queues.publish(QUEUE, {"order": 3})
    tag, _, order = read_natively(channel, native_name)
    channel.basic_reject(tag, requeue=False)
    until = time.monotonic() + 60
    while not (dead := list(postroad.queues.dead_letters.list(QUEUE))) and time.monotonic() < until:
        time.sleep(0.2)
    print(f"the native program rejected {order}; it is a dead letter: {dead[0].reason}")

    connection.close()
    postroad.queues.delete(QUEUE)


if __name__ == "__main__":
    main()
