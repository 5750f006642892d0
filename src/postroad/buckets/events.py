"""Event types of buckets."""

from typing import ClassVar

from postroad.kernel.event import Event


class BucketChanged(Event, frozen=True, kw_only=True, tag="bucket.changed"):
    """A bucket was `created`, its settings were `updated`, or it was `deleted` with its values: `change` is one of these."""

    resource: ClassVar[tuple[str, str] | None] = ("bucket", "bucket")

    bucket: str
    version: int = 1
    change: str
    incarnation: str
    key_id: str = ""
    request_id: str = ""


EVENTS: tuple[type[Event], ...] = (BucketChanged,)
