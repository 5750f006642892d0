"""The contract of queues and jobs, request by request, against a running installation, with queues of both backends."""

import re
import uuid
from datetime import datetime
from typing import Any

import pytest

from tests.conformance.conftest import Project
from tests.gateway import Client
from tests.rabbitmq_server import BACKENDS
from tests.waiting import eventually

QUEUE = "/v1/queues/orders"
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture(autouse=True, params=BACKENDS)
async def _orders(project: Project, request: pytest.FixtureRequest) -> None:
    (await project.client.put(QUEUE, {"backend": request.param})).ok(201)


def is_uuid(text: str) -> bool:
    return str(uuid.UUID(text)) == text


async def published(project: Project, **body: object) -> dict[str, Any]:
    answer: dict[str, Any] = (await project.client.post(f"{QUEUE}/messages", {"payload": {"any": "json"}, **body})).ok(201)
    return answer


async def pulled(project: Project, **body: object) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (
        await project.client.post(f"{QUEUE}/pull", {"maxMessages": 10, "visibilityTimeoutMs": 30_000, **body})
    ).ok()["messages"]
    return messages


async def pull_one(project: Project, **body: object) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def is_there() -> bool:
        found.extend(await pulled(project, maxMessages=1, waitMs=1000, **body))
        return bool(found)

    await eventually(is_there, 30)
    return found[0]


async def job(project: Project, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await project.client.get(f"/v1/jobs/{job_id}")).ok()
    return found


# Health


async def test_liveness_and_readiness_need_no_key(project: Project) -> None:
    anonymous = Client(project.client.url, project.client.session)
    for path in ("/healthz", "/readyz"):
        assert (await anonymous.get(path)).status == 200


# Publish


async def test_publish(project: Project) -> None:
    body = {
        "payload": {"any": "json"},
        "headers": {"optional": "string"},
        "delayMs": 0,
        "idempotencyKey": "optional-string",
        "correlationId": "optional-string",
    }
    answer = (await project.client.post(f"{QUEUE}/messages", body)).ok(201)
    assert set(answer) >= {"messageId", "jobId", "enqueuedAt"}
    assert is_uuid(answer["messageId"]) and is_uuid(answer["jobId"])
    assert ISO.fullmatch(answer["enqueuedAt"]) and datetime.fromisoformat(answer["enqueuedAt"]).tzinfo is not None
    again = (await project.client.post(f"{QUEUE}/messages", body)).ok(201)
    assert (again["messageId"], again["jobId"]) == (answer["messageId"], answer["jobId"]), "published once"
    message = await pull_one(project)  # with an idempotency key it is in RabbitMQ a moment later
    assert (message["payload"], message["headers"]) == (body["payload"], body["headers"])
    assert await pulled(project) == []


async def test_a_delayed_message_is_not_there_yet(project: Project) -> None:
    made = await published(project, delayMs=3_600_000)
    assert await pulled(project) == []
    assert (await job(project, made["jobId"]))["status"] == "delayed"
    soon = await published(project, delayMs=50)
    assert (await pull_one(project))["messageId"] == soon["messageId"]


# Pull, ack, nack


async def test_pull_and_ack(project: Project) -> None:
    made = await published(project, headers={"any": "string"})
    message = await pull_one(project)
    receipt = message.pop("receiptId")
    assert isinstance(receipt, str) and receipt
    assert {name: message[name] for name in ("messageId", "jobId", "payload", "headers", "attempt", "enqueuedAt")} == {
        "messageId": made["messageId"],
        "jobId": made["jobId"],
        "payload": {"any": "json"},
        "headers": {"any": "string"},
        "attempt": 1,
        "enqueuedAt": made["enqueuedAt"],
    }
    assert await pulled(project) == [], "a leased message is pulled once"
    assert (await project.client.post(f"{QUEUE}/ack", {"receiptId": receipt})).ok()["ok"] is True
    assert (await job(project, made["jobId"]))["status"] == "done"


async def test_a_lease_that_expires_requeues_the_message(project: Project) -> None:
    made = await published(project)
    first = await pull_one(project, visibilityTimeoutMs=1000)
    again = await pull_one(project)
    assert again["messageId"] == made["messageId"]
    assert again["attempt"] >= 2  # RabbitMQ counts deliveries that came too late for the pull, too
    (await project.client.post(f"{QUEUE}/ack", {"receiptId": first["receiptId"]})).problem(409, "lease-expired")
    (await project.client.post(f"{QUEUE}/ack", {"receiptId": again["receiptId"]})).ok()


@pytest.mark.parametrize("action", ["requeue", "retry", "dlq"])
async def test_nack(project: Project, action: str) -> None:
    (await project.client.put(QUEUE, {"retryDelaysMs": [50], "maxAttempts": 5})).ok()
    made = await published(project)
    message = await pull_one(project)
    body = {"receiptId": message["receiptId"], "action": action, "reason": "optional"}
    assert (await project.client.post(f"{QUEUE}/nack", body)).ok()["ok"] is True
    if action == "dlq":
        assert await pulled(project) == []
        assert (await job(project, made["jobId"]))["status"] == "dead"
        assert (await job(project, made["jobId"]))["lastError"] == "optional"
        [dead] = (await project.client.get(f"{QUEUE}/dlq")).ok()["messages"]
        assert dead["messageId"] == made["messageId"]
    else:
        assert (await pull_one(project))["attempt"] == 2


async def test_an_unknown_action_is_refused(project: Project) -> None:
    await published(project)
    message = await pull_one(project)
    body = {"receiptId": message["receiptId"], "action": "drop"}
    (await project.client.post(f"{QUEUE}/nack", body)).problem(422, "invalid-body")


# Jobs


async def test_a_job_has_its_fields_and_is_found(project: Project) -> None:
    made = await published(project, correlationId="c-1")
    found = await job(project, made["jobId"])
    fields = ("jobId", "queue", "status", "attempts", "createdAt", "updatedAt", "lastError", "correlationId", "messageId")
    assert set(found) >= set(fields)
    assert {name: found[name] for name in ("jobId", "queue", "attempts", "lastError", "correlationId", "messageId")} == {
        "jobId": made["jobId"],
        "queue": "orders",
        "attempts": 0,
        "lastError": None,
        "correlationId": "c-1",
        "messageId": made["messageId"],
    }
    for name in ("createdAt", "updatedAt"):
        assert ISO.fullmatch(found[name])
    query = "queue=orders&status=queued&from=2020-01-01T00:00:00Z&to=2099-01-01T00:00:00Z&limit=10"
    listed = (await project.client.get(f"/v1/jobs?{query}")).ok()["jobs"]
    assert [one["jobId"] for one in listed] == [made["jobId"]]


# Keys, scopes and settings

CALLS = {
    "publish": ("POST", f"{QUEUE}/messages", {"payload": 1}),
    "pull": ("POST", f"{QUEUE}/pull", {"maxMessages": 1}),
    "ack": ("POST", f"{QUEUE}/ack", {"receiptId": "r"}),
    "nack": ("POST", f"{QUEUE}/nack", {"receiptId": "r", "action": "retry"}),
    "settings": ("GET", "/v1/admin/settings", None),
    "keys": ("GET", "/api/control/keys", None),
}


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("publish", {"publish"}), ("consume", {"pull", "ack", "nack"}), ("admin", {"settings", "keys"})],
)
async def test_each_call_needs_its_scope(project: Project, scope: str, allowed: set[str]) -> None:
    client = await project.key(scope)

    async def is_known() -> bool:
        return all([(await client.get("/v1/whoami")).status == 200 for _ in range(4)])

    await eventually(is_known, 30)
    for name, (method, path, body) in CALLS.items():
        status = (await client.call(method, path, body)).status
        assert (status != 403) == (name in allowed), (name, status)


async def test_a_key_is_restricted_to_its_queues_and_can_be_disabled(project: Project) -> None:
    body = {"name": "narrow", "scopes": ["publish"], "allowedQueues": ["orders*"]}
    made = (await project.client.post("/api/control/keys", body)).ok(201)
    client = Client(project.client.url, project.client.session, {"Authorization": f"ApiKey {made['key']}"})
    (await client.post(f"{QUEUE}/messages", {"payload": 1})).ok(201)
    (await client.post("/v1/queues/other/messages", {"payload": 1})).problem(403, "forbidden")
    path = f"/api/control/keys/{made['record']['id']}"
    shown = (await project.client.get(path)).ok()
    assert made["key"] not in str(shown) and shown["enabled"] is True and "lastUsedAt" in shown
    (await project.client.call("PATCH", path, {"enabled": False})).ok()

    async def is_refused() -> bool:
        return all([(await client.post(f"{QUEUE}/messages", {"payload": 1})).status == 401 for _ in range(4)])

    await eventually(is_refused, 30)


@pytest.mark.parametrize("mode", ["jobs_only", "off", "full"])
async def test_the_audit_mode_changes_while_running(project: Project, mode: str) -> None:
    (await project.client.post("/v1/admin/settings", {"auditMode": mode})).ok()

    async def is_everywhere() -> bool:
        answers = [(await project.client.get("/v1/admin/settings")).ok()["settings"]["auditMode"] for _ in range(4)]
        return answers == [mode] * 4

    await eventually(is_everywhere, 30)
    made = await published(project)
    answer = await project.client.get(f"/v1/jobs/{made['jobId']}")
    assert answer.status == (404 if mode == "off" else 200)


async def test_queues_are_listed_with_their_stats(project: Project) -> None:
    await published(project)

    async def has_stats() -> bool:
        [queue] = (await project.client.get("/v1/queues?stats=true")).ok()["queues"]
        return (queue["name"], queue["stats"]["ready"], queue["stats"]["dead"]) == ("orders", 1, 0)

    await eventually(has_stats, 30)
