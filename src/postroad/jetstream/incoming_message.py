"""A message of a subscription."""

from dataclasses import dataclass


@dataclass(slots=True)
class IncomingMessage:
    subject: str
    reply: str  # where a response is expected; empty: nowhere
    headers: dict[str, str] | None
    data: bytes
