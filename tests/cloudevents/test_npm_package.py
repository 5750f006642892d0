"""CloudEvents made and read by the npm package `cloudevents`."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway import Tenant
from tests.node import NODE

ROUND_TRIP = Path(__file__).parent.parent / "conformance" / "cloudevents_round_trip.mjs"
COMMON = {
    "specversion": "1.0",
    "source": "https://shop.example/eu",
    "type": "com.example.order.created",
    "time": "2027-01-31T12:00:00.000Z",
    "subject": "orders/5",
    "comexampleteam": "shop",
}

pytestmark = pytest.mark.engine


@pytest.mark.timeout(180)
async def test_the_npm_package_makes_our_input_and_reads_our_output(tenant: Tenant) -> None:
    await tenant.queue("orders")
    process = await asyncio.create_subprocess_exec(
        *(NODE, str(ROUND_TRIP), tenant.gateway.url, tenant.key, "orders"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    events = {one["id"]: one for one in json.loads(output)}
    assert all(one.pop("postroadreceipt") and one.pop("postroadmessageid") for one in events.values())
    for one in events.values():
        assert one.pop("postroadjobid") and one.pop("postroadattempt") == 1
    data = {"data": {"total": 12.5}}
    typed = {"datacontenttype": "application/json; charset=utf-8"}
    assert events["binary"] == {**COMMON, "id": "binary", **typed, **data}
    schema = {"dataschema": "https://schemas.example/order.json"}
    assert events["structured"] == {**COMMON, "id": "structured", **schema, **data}
    assert events["text"] == {**COMMON, "id": "text", "datacontenttype": "text/plain", "data": "grün"}
    assert events["first"] == {**COMMON, "id": "first", **data}
    png = {"datacontenttype": "image/png", "data_base64": "AP8="}
    assert events["second"] == {**COMMON, "id": "second", **png}
