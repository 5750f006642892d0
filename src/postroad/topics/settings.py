"""Settings of topics."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings(Section):
    topic_headers_max: int = setting(64, "Maximum number of headers of a message of a topic.", positive)
    topic_headers_bytes_max: int = setting(
        16 * 1024, "Maximum size of the headers of a message of a topic, names and values together.", positive
    )
    topic_batch_messages_max: int = setting(
        1000, "Maximum number of messages in a batch for a topic.", lambda value: 1 <= value <= 1000
    )
