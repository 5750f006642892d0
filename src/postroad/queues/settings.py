"""Settings of queues."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSettings(Section):
    message_headers_max: int = setting(64, "Headers of one message.", positive)
    message_headers_bytes_max: int = setting(16 * 1024, "Names and values of one message's headers together.", positive)
    batch_messages_max: int = setting(1000, "Messages in one batch publish.", lambda value: 1 <= value <= 1000)
    pull_wait_ms_max: int = setting(20_000, "Longest long poll of a pull.", lambda value: 0 <= value <= 60_000)
