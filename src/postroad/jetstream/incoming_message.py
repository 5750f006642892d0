"""What a NATS server sends: a message of a subscription, or a reply."""

from dataclasses import dataclass, field

from postroad.jetstream.nats_parser import parse_headers


@dataclass(slots=True)
class Received:
    """Data with headers, which are parsed when they are read: those of most messages are not."""

    data: bytes
    header_block: bytes = b""  # as sent; empty: no headers
    _headers: dict[str, str] | None = field(init=False, default=None)

    @property
    def headers(self) -> dict[str, str]:
        if self._headers is None:
            self._headers = parse_headers(self.header_block) if self.header_block else {}
        return self._headers


@dataclass(slots=True)
class IncomingMessage(Received):
    """A message of a subscription."""

    subject: str = ""
    reply: str = ""  # where a response is expected; empty: nowhere
