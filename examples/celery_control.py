"""Remote control and events of Celery workers through SNS and SQS: `celery -A celery_control inspect ping`, `… events --dump`.

export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…      # `postroad keys aws <key id>`, or var/credentials.toml
celery -A celery_control worker -E
celery -A celery_control inspect ping --timeout 5
celery -A celery_control control rate_limit celery_app.add 10/m

kombu can broadcast through SNS since 5.6, but Celery does not use it, neither with AWS: the SQS transport declares direct
exchanges only, a worker does not know the queue for replies of another process, and events go to an exchange of the type topic,
whose bindings are in the memory of a process. The transport below closes these gaps.
"""

from typing import Any
from urllib.parse import quote

from celery.events import event
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.SQS import Channel as SqsChannel
from kombu.transport.SQS import Transport as SqsTransport

from celery_app import app, endpoint, key_id, secret  # type: ignore[import-not-found]


class Channel(SqsChannel):  # type: ignore[misc]
    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """The queue for replies has the name `<routing key>.<exchange>`, also if another process has bound it."""
        if exchange.startswith("reply."):
            return [f"{routing_key}.{exchange}"]
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found

    def _delete(self, queue: str, *arguments: Any, **more: Any) -> None:
        """kombu forgets the URL under another name than it has stored it, and would use the queue again."""
        super()._delete(queue, *arguments, **more)
        self._queue_cache.pop(self.canonical_queue_name(queue), None)

    def _delete_message(self, queue_name: str, message: dict[str, Any]) -> None:
        """kombu would use the client of the event loop, which a program that waits for replies does not have."""
        self.sqs().delete_message(QueueUrl=self._new_queue(queue_name), ReceiptHandle=message["ReceiptHandle"])


class Transport(SqsTransport):  # type: ignore[misc]
    Channel = Channel
    implements = SqsTransport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))


TRANSPORT_ALIASES["postroad"] = f"{__name__}:Transport"
event.event_exchange.type = "fanout"
app.conf.broker_url = f"postroad://{quote(key_id, safe='')}:{quote(secret, safe='')}@{endpoint.netloc}"
app.conf.broker_transport_options = {**app.conf.broker_transport_options, "supports_fanout": True, "wait_time_seconds": 1}
