"""Responses, as handlers return them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from postroad.http.security_headers import SecurityHeaders
from postroad.kernel.json import encode


@dataclass(slots=True)
class Response:
    """One response. `body` is bytes, a msgspec value to be encoded, or an iterator of chunks.

    `security`: set by handlers that return pages, or content of a tenant (`http/security_headers.py`).
    """

    body: bytes | msgspec.Struct | AsyncIterator[bytes] | None = None
    status: int = 200
    media: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    security: SecurityHeaders | None = None

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else encode(self.body)
