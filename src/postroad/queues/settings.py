"""Settings of queues."""

import re
from dataclasses import dataclass

from postroad.api.queues import ENGINE, RABBITMQ
from postroad.kernel.configuration import Secret, Section, positive, setting

_RABBITMQ_LEASE_MS_MAX = 25 * 60_000  # RabbitMQ closes a channel with a delivery of 30 minutes


def _are_amqp_urls(value: str) -> bool:
    return all(re.fullmatch(r"amqps?://[^\s,/]+(/[^\s,]*)?", one) for one in value.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSettings(Section):
    message_headers_max: int = setting(64, "Maximum number of headers of a message.", positive)
    message_headers_bytes_max: int = setting(
        16 * 1024, "Maximum size of the headers of a message, names and values together.", positive
    )
    batch_messages_max: int = setting(1000, "Maximum number of messages in a batch.", lambda value: 1 <= value <= 1000)
    queue_metrics_max: int = setting(
        200,
        "Queues with their own series in the metrics. The others are added up under the label `other`; 0 for no queue metrics.",
        lambda value: 0 <= value <= 100_000,
    )
    pull_wait_ms_max: int = setting(20_000, "Maximum wait of a long poll.", lambda value: 0 <= value <= 60_000)
    queue_backend: str = setting(
        ENGINE,
        "Where new queues have their messages, unless their setting `backend` is given: `engine` or `rabbitmq`.",
        lambda value: value in (ENGINE, RABBITMQ),
    )
    rabbitmq_url: Secret | None = setting(
        None,
        "RabbitMQ nodes, comma separated, such as `amqps://user:password@rabbit1/vhost`: tried in turn. `amqps` uses TLS; "
        "`?cafile=/ca.pem` names the CA, `certfile` and `keyfile` the client certificate.",
        _are_amqp_urls,
        plain_name="RABBITMQ_URL",
    )
    rabbitmq_prefix: str = setting(
        "postroad",
        "Start of the names of queues in RabbitMQ; `<prefix>.<tenant>.<queue>`. Do not change it while there are queues.",
        lambda value: re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value) is not None,
    )
    rabbitmq_lease_ms_max: int = setting(
        _RABBITMQ_LEASE_MS_MAX,
        "Longest lease of a message in RabbitMQ, in milliseconds. Keep it below RabbitMQ's `consumer_timeout`, which ends all "
        "leases of a worker in the queue.",
        lambda value: 1000 <= value <= 12 * 3_600_000,
    )
    rabbitmq_prefetch: int = setting(
        1000,
        "Messages that a worker holds of one queue in RabbitMQ: leased, or on their way to a pull.",
        lambda value: 1 <= value <= 65_535,
        plain_name="PREFETCH_DEFAULT",
    )
