"""JetStream API: stream information, sequence lookups and ephemeral consumers."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, Rejected

_NO_MESSAGE_FOUND = 10037


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State and configuration of a stream, from its leader. In an empty stream `last` is `first` - 1."""

    name: str
    created: str
    first: int
    last: int
    messages: int
    allows_direct: bool
    retention: str
    bytes: int = 0


class JetStreamApi:
    """API requests over one client. They raise Rejected for errors of the server, and ConnectionLost for temporary ones."""

    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self.prefix = prefix

    def stream_info(self, stream: str) -> StreamInfo:
        """Raises Rejected if the stream does not exist."""
        reply = self.call(f"STREAM.INFO.{stream}", None, f"stream {stream!r}")
        state, config = reply["state"], reply["config"]
        return StreamInfo(
            stream,
            reply["created"],
            max(state["first_seq"], 1),
            state["last_seq"],
            state["messages"],
            bool(config.get("allow_direct")),
            config.get("retention", "limits"),
            state.get("bytes", 0),
        )

    def next_sequence(self, stream: str, sequence: int, subjects: tuple[str, ...]) -> int | None:
        """Return the first sequence from `sequence` on that matches a filter. The leader replies; replicas may be behind."""
        found = [self._find_sequence(stream, {"seq": sequence, "next_by_subj": subject}) for subject in subjects or (">",)]
        return min((match for match in found if match is not None), default=None)

    def sequence_at(self, stream: str, time: datetime) -> int | None:
        """Return the sequence of the first message stored at `time` or later."""
        return self._find_sequence(stream, {"start_time": time.isoformat().replace("+00:00", "Z"), "next_by_subj": ">"})

    def _find_sequence(self, stream: str, query: dict[str, Any]) -> int | None:
        reply = self.call(f"STREAM.MSG.GET.{stream}", query, f"stream {stream!r}", expected_error=_NO_MESSAGE_FOUND)
        return reply["message"]["seq"] if "message" in reply else None

    def create_consumer(self, stream: str, sequence: int, subjects: tuple[str, ...]) -> tuple[str, int]:
        """Create an ephemeral pull consumer that starts at a sequence. Returns its name and its number of pending messages."""
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence", "opt_start_seq": sequence, "ack_policy": "none", "mem_storage": True,
            "num_replicas": 1, "inactive_threshold": 60_000_000_000, "max_waiting": 8,
        }  # fmt: skip
        if subjects:
            config["filter_subjects"] = list(subjects)
        body = {"stream_name": stream, "config": config}
        reply = self.call(f"CONSUMER.CREATE.{stream}", body, f"consumer of stream {stream!r}")
        return reply["name"], reply["num_pending"]

    def call(
        self, endpoint: str, body: dict[str, Any] | None, resource: str, expected_error: int | None = None
    ) -> dict[str, Any]:
        """Send one API request. A reply with the error code `expected_error` is returned like any other."""
        frame = self.client.request(f"{self.prefix}.{endpoint}", body)
        if frame.status == 503:
            raise Rejected(f"{resource}: JetStream does not reply; is it enabled, and are 'domain' or 'apiPrefix' correct?")
        reply: dict[str, Any] = json.loads(frame.data)
        error = reply.get("error")
        if error and error.get("err_code") != expected_error:
            text = f"{resource}: {error.get('description')} ({error.get('err_code')})"
            raise ConnectionLost(text) if error.get("code") == 503 else Rejected(text)
        return reply
