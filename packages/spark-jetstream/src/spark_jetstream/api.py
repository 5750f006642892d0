"""What is asked of JetStream: what a stream holds, what comes next in it, a consumer for a while."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, Refused

_NO_MESSAGE = 10037
_NO_STREAM = 10059


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream at this moment, as its leader knows it. Empty: `last` is `first` - 1."""

    name: str
    created: str
    first: int
    last: int
    messages: int
    mean_bytes: int
    allows_direct: bool
    retention: str


class Api:
    """JetStream's questions and answers over one client."""

    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self.prefix = prefix

    def stream_info(self, stream: str) -> StreamInfo:
        """Raises Refused when there is no such stream."""
        answer = self.ask(f"STREAM.INFO.{stream}", None, f"the stream {stream!r}")
        state, config = answer["state"], answer["config"]
        return StreamInfo(
            stream,
            answer["created"],
            max(state["first_seq"], 1),
            state["last_seq"],
            state["messages"],
            state["bytes"] // max(state["messages"], 1),
            bool(config.get("allow_direct")),
            config.get("retention", "limits"),
        )

    def next_sequence(self, stream: str, sequence: int, subjects: tuple[str, ...]) -> int | None:
        """The first message from here on that fits a filter. The stream's leader answers: nobody else knows the end."""
        found = [self._get(stream, {"seq": sequence, "next_by_subj": subject}) for subject in subjects or (">",)]
        return min((place for place in found if place is not None), default=None)

    def sequence_at(self, stream: str, moment: datetime) -> int | None:
        """The first message that was stored then or later."""
        return self._get(stream, {"start_time": moment.isoformat().replace("+00:00", "Z"), "next_by_subj": ">"})

    def _get(self, stream: str, body: dict[str, Any]) -> int | None:
        answer = self.ask(f"STREAM.MSG.GET.{stream}", body, f"the stream {stream!r}", fine=(_NO_MESSAGE,))
        return answer["message"]["seq"] if "message" in answer else None

    def create_consumer(self, stream: str, sequence: int, subjects: tuple[str, ...]) -> tuple[str, int]:
        """A consumer that leaves no trace, from a sequence on: its name, and how many messages wait for it."""
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence", "opt_start_seq": sequence, "ack_policy": "none", "mem_storage": True,
            "num_replicas": 1, "inactive_threshold": 60_000_000_000, "max_waiting": 8,
        }  # fmt: skip
        if subjects:
            config["filter_subjects"] = list(subjects)
        body = {"stream_name": stream, "config": config}
        answer = self.ask(f"CONSUMER.CREATE.{stream}", body, f"a consumer of {stream!r}")
        return answer["name"], answer["num_pending"]

    def ask(self, call: str, body: dict[str, Any] | None, what: str, fine: tuple[int, ...] = ()) -> dict[str, Any]:
        """One call. An error among `fine` is an answer; others raise Refused, or ConnectionLost when they will pass."""
        frame = self.client.request(f"{self.prefix}.{call}", body)
        if frame.status == 503:
            raise Refused(f"JetStream does not answer for {what}: is it enabled, and are 'domain' or 'apiPrefix' right?")
        answer: dict[str, Any] = json.loads(frame.data)
        error = answer.get("error")
        if error and error.get("err_code") not in fine:
            text = f"{what}: {error.get('description')} ({error.get('err_code')})"
            raise ConnectionLost(text) if error.get("code") == 503 else Refused(text)
        return answer
