"""Usage of a tenant: messages, deliveries, requests, appends, storage."""

from typing import Annotated

from postroad.api.insights import Number, Report, Row, Start, TimePage, Unit, Visibility, column


class UsageRow(Row, frozen=True, kw_only=True):
    """The tenant's usage in a minute, hour or day."""

    time: Start
    published: Annotated[int, column("Messages published to queues.")]
    published_bytes: Annotated[int, column("Size of their payloads.", unit=Unit.BYTES, title="bytes")]
    deliveries: Annotated[int, column("Leases, including repeated deliveries.")]
    done: Annotated[int, column("Messages acknowledged.")]
    dead: Annotated[int, column("Messages that became dead letters.")]
    cancelled: Annotated[int, column("Jobs that were cancelled.")] = (
        0  # this and the next: missing in results of earlier versions
    )
    expired: Annotated[int, column("Jobs whose message expired before it was done.")] = 0
    requests: Annotated[int, column("HTTP requests.")]
    bytes_in: Annotated[int, column("Size of request bodies.", unit=Unit.BYTES, title="in")]
    bytes_out: Annotated[int, column("Size of response bodies.", unit=Unit.BYTES, title="out")]
    appends: Annotated[int, column("Appends to durable streams.")]
    append_bytes: Annotated[int, column("Size of the appends.", unit=Unit.BYTES, is_listed=False)]
    fanout_messages: Annotated[int, column("Copies written to session streams.", title="fan-out")]
    storage_byte_hours: Annotated[Number, column("Stored bytes times hours: the cost of storage.", is_listed=False)]
    stored_bytes: Annotated[Number, column("Bytes stored at the end of that time.", unit=Unit.BYTES, title="stored")]


class UsagePage(TimePage[UsageRow], frozen=True, kw_only=True):
    items: list[UsageRow]


REPORT = Report(
    name="usage",
    row=UsageRow,
    page=UsagePage,
    summary="Report the tenant's usage: messages, deliveries, requests, appends, storage",
    visibility=Visibility.TENANT,
    rank="requests",
)
