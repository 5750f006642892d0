"""The AsyncAPI document of a tenant."""

from typing import Annotated

import msgspec
from msgspec import Meta

LISTED_MAX = 1000


class AsyncApiQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[
        int,
        Meta(ge=1, le=LISTED_MAX, description="At most so many queues, topics and streams each; the document says what was cut."),
    ] = 200
