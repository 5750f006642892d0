"""Settings of queues."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


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
