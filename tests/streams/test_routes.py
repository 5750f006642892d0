"""Streams over HTTP: names, headers, errors and the audit log."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.gateway import Answer, Gateway, Tenant
from tests.streams.readers import Stream

pytestmark = pytest.mark.usefixtures("both_paths")


def at(delta: timedelta) -> str:
    return (datetime.now(UTC) + delta).isoformat().replace("+00:00", "Z")


async def create(tenant: Tenant, path: str = "/v1/stream/a", data: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await tenant.client.call("PUT", path, data=data, headers={"Content-Type": "text/plain", **named})


# Names of projects

PROJECT_PATHS = [
    ("GET", "stream/a"),
    ("PUT", "stream/a"),
    ("HEAD", "stream/a"),
    ("GET", "stream/__ds/jwks.json"),
    ("POST", "stream/__ds/subscriptions/s/ack"),
    ("POST", "subscribe"),
    ("DELETE", "unsubscribe"),
    ("POST", "unsubscribe"),
    ("POST", "publish/a"),
    ("GET", "fanout/a"),
    ("GET", "session/s"),
    ("POST", "session/s/touch"),
    ("DELETE", "session/s"),
]


@pytest.mark.parametrize("project", ["My_App", "a.b", "-a", "caf%C3%A9", "a" * 33, "a%20b"])
@pytest.mark.parametrize(("method", "path"), PROJECT_PATHS)
async def test_an_invalid_project_name_is_refused_on_every_route(
    gateway: Gateway, tenant: Tenant, method: str, path: str, project: str
) -> None:
    for client in (tenant.client, gateway.anonymous):
        answer = await client.call(method, f"/v1/{project}/{path}")
        assert answer.status == 400
        if method != "HEAD":
            assert "project" in answer.problem(400, "invalid-parameter")["detail"]


# Headers


@pytest.mark.parametrize("header", ["Stream-Closed", "Stream-Public"])
@pytest.mark.parametrize("value", ["maybe", "1", "yes", ""])
async def test_a_flag_that_is_neither_true_nor_false_is_refused(tenant: Tenant, header: str, value: str) -> None:
    answer = await tenant.client.call("PUT", "/v1/stream/a", headers={header: value})
    assert header in answer.problem(400, "invalid-parameter")["detail"]
    (await tenant.client.get("/v1/stream/a")).problem(404, "stream-not-found")


async def test_an_append_with_an_invalid_flag_stores_nothing(stream: Stream) -> None:
    await stream.create()
    answer = await stream.client.call(
        "POST", stream.path, data=b"x", headers={"Content-Type": "text/plain", "Stream-Closed": "maybe"}
    )
    answer.problem(400, "invalid-parameter")
    assert (await stream.read()).body == b""
    await stream.append(b"y", **{"Stream-Closed": "FALSE"})
    assert (await stream.read()).body == b"y"


async def test_an_expiry_in_the_past_is_refused(tenant: Tenant) -> None:
    answer = await create(tenant, Stream_Expires_At=at(timedelta(seconds=-1)))
    assert "past" in answer.problem(400, "invalid-parameter")["detail"]
    assert (await create(tenant, Stream_Expires_At=at(timedelta(hours=1)))).status == 201


# Errors


async def test_errors_name_the_stream(tenant: Tenant) -> None:
    missing = "/v1/stream/no/such"
    headers = {"Content-Type": "text/plain"}
    assert "'no/such'" in (await tenant.client.get(missing)).problem(404, "stream-not-found")["detail"]
    assert "'no/such'" in (await tenant.client.delete(missing)).problem(404, "stream-not-found")["detail"]
    appended = await tenant.client.post(missing, data=b"x", headers=headers)
    assert "'no/such'" in appended.problem(404, "stream-not-found")["detail"]
    published = await tenant.client.post(f"/v1/{tenant.id}/publish/no/such", data=b"x", headers=headers)
    assert "'no/such'" in published.problem(404, "stream-not-found")["detail"]
    forked = await create(tenant, Stream_Forked_From=missing)
    assert "'no/such'" in forked.problem(404, "stream-not-found")["detail"]
    await create(tenant, Stream_Closed="true")
    assert "'a'" in (await tenant.client.post("/v1/stream/a", data=b"x", headers=headers)).problem(409, "stream-closed")["detail"]
    assert "'a'" in (await create(tenant)).problem(409, "stream-exists")["detail"]


# Audit


async def test_a_delete_is_audited(tenant: Tenant) -> None:
    await create(tenant)
    assert (await tenant.client.delete("/v1/stream/a")).status == 204
    (await tenant.client.delete("/v1/stream/a")).problem(404, "stream-not-found")
    entries = (await tenant.client.get("/api/control/audit?action=stream.delete")).ok()["entries"]
    assert [(one["target"], one["actorKeyId"]) for one in entries] == [("a", tenant.record.id)]
    assert entries[0]["before"]["contentType"] == "text/plain"
