"""Loops through receivers: the header `X-MQ-Hops` counts how often a change was delivered and led to another one."""

from typing import Annotated

from msgspec import Meta

from postroad.api.topics import HOPS_MAX, LoopDetected
from postroad.http.request import Request
from postroad.kernel.errors import InvalidParameter

_DIGITS_MAX = 6
HOPS_HEADER = (
    "X-MQ-Hops",
    Annotated[
        int,
        Meta(
            ge=0,
            le=10**_DIGITS_MAX - 1,
            description=f"That of the delivery which this write responds to; from {HOPS_MAX} on it is refused as a loop.",
        ),
    ],
)


def request_hops(request: Request) -> int:
    """The hops of a request, 0 without the header. Raises InvalidParameter."""
    text = request.header(b"x-mq-hops")
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise InvalidParameter("the header X-MQ-Hops is a number")
    return int(text)


def check_hops(hops: int) -> None:
    """Raises LoopDetected."""
    if hops >= HOPS_MAX:
        raise LoopDetected(f"the write responds to {hops} deliveries in a row; {HOPS_MAX} are taken for a loop")
