"""Settings that can change at run time: values of the tenant, else of the platform, else of the environment."""

from typing import Any

import pytest
from tests.access.control import AT_ONCE, DEFAULTS, SETTINGS, fresh
from tests.gateway import Client, Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

LIMITS = {
    "receiptTtlMaxMs": 60_000,
    "pullMax": 5,
    "maxMessageBytes": 2000,
    "maxQueues": 5,
    "maxKeys": 5,
    "maxStorageBytes": 5,
    "maxRequestsPerSecond": 500,
    "maxLiveConnections": 5,
}


def operator(gateway: Gateway, tenant: Tenant) -> Client:
    return gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})


async def choose(client: Client, path: str = SETTINGS, **values: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = (await client.post(path, values)).ok()
    return chosen


async def settings_of(client: Client, path: str = SETTINGS) -> dict[str, Any]:
    settings: dict[str, Any] = (await client.get(path)).ok()["settings"]
    return settings


@pytest.fixture
async def both(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> tuple[Tenant, Tenant]:
    """The tenant at both gateways; changes are made at the first."""
    return tenant, second_gateway.seen_by(tenant)


async def set_for_both(both: tuple[Tenant, Tenant], client: Client, **values: Any) -> None:
    """Change settings, and wait until both gateways have them."""
    await choose(client, SETTINGS, **values)

    async def is_known() -> bool:
        return all([values.items() <= (await settings_of(one.client)).items() for one in both])

    await eventually(is_known, AT_ONCE)


# Which of them holds


async def test_a_new_tenant_has_the_defaults(gateway: Gateway, tenant: Tenant) -> None:
    answer = (await tenant.client.get(SETTINGS)).ok()
    assert answer["chosen"] == {}
    assert answer["settings"] == {
        "auditMode": "full",
        "autoCreateQueues": False,
        "autoCreateTopics": False,
        "visibilityTimeoutMs": 30_000,
        "receiptTtlMaxMs": 43_200_000,
        "idempotencyTtlMs": 86_400_000,
        "pullMax": 500,
        "maxMessageBytes": 1_048_576,
        "maxQueues": 10_000,
        "maxTopics": 10_000,
        "maxBuckets": 1000,
        "maxServices": 1000,
        "maxRoutes": 10_000,
        "commandsByKey": True,
        "snavioDispatchMode": "adaptive",
        "contact": "",
        "telemetryEvents": [],
        "maxKeys": 1000,
        "maxStorageBytes": None,
        "maxRequestsPerSecond": None,
        "maxLiveConnections": None,
    }


async def test_a_tenants_setting_overrides_the_default_until_null_restores_it(gateway: Gateway, tenant: Tenant) -> None:
    try:
        await choose(gateway.admin, DEFAULTS, visibilityTimeoutMs=11_000)
        assert (await settings_of(tenant.client))["visibilityTimeoutMs"] == 11_000
        answer = await choose(tenant.client, visibilityTimeoutMs=22_000)
        assert answer["settings"]["visibilityTimeoutMs"] == 22_000
        assert answer["chosen"] == {"visibilityTimeoutMs": 22_000}
        await choose(gateway.admin, DEFAULTS, visibilityTimeoutMs=12_000)
        assert (await settings_of(tenant.client))["visibilityTimeoutMs"] == 22_000
        assert (await choose(tenant.client, visibilityTimeoutMs=None))["chosen"] == {}
        assert (await settings_of(tenant.client))["visibilityTimeoutMs"] == 12_000
    finally:
        await choose(gateway.admin, DEFAULTS, visibilityTimeoutMs=None)
    assert (await settings_of(tenant.client))["visibilityTimeoutMs"] == 30_000


async def test_a_platform_setting_overrides_the_environment(engine_url: str) -> None:
    started = gateway_settings(engine_url, pull_messages_max=7, audit_mode="jobs_only", idempotency_ttl_ms=9000)
    async with running_gateway(started) as gateway:
        tenant = await gateway.tenant()
        found = await settings_of(tenant.client)
        assert (found["pullMax"], found["auditMode"], found["idempotencyTtlMs"]) == (7, "jobs_only", 9000)
        try:
            answer = await choose(gateway.admin, DEFAULTS, pullMax=8)
            assert (answer["settings"]["pullMax"], answer["chosen"]) == (8, {"pullMax": 8})
            assert (await settings_of(tenant.client))["pullMax"] == 8
        finally:
            await choose(gateway.admin, DEFAULTS, pullMax=None)
        assert (await settings_of(tenant.client))["pullMax"] == 7


async def test_omitted_fields_keep_their_value(tenant: Tenant) -> None:
    await choose(tenant.client, auditMode="off")
    assert (await choose(tenant.client, visibilityTimeoutMs=5))["chosen"] == {
        "auditMode": "off",
        "visibilityTimeoutMs": 5,
    }
    assert (await choose(tenant.client))["chosen"]["auditMode"] == "off"


async def test_settings_are_per_tenant(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    await choose(tenant.client, auditMode="off")
    assert (await settings_of(other.client))["auditMode"] == "full"


# Who may change them


@pytest.mark.parametrize(("name", "value"), LIMITS.items())
async def test_limits_need_a_platform_key(gateway: Gateway, tenant: Tenant, name: str, value: int) -> None:
    for wanted in (value, None):
        problem = (await tenant.client.post(SETTINGS, {name: wanted, "auditMode": "off"})).problem(403, "forbidden")
        assert name in problem["detail"]
    assert (await settings_of(tenant.client))["auditMode"] == "full"
    assert (await choose(operator(gateway, tenant), SETTINGS, **{name: value}))["settings"][name] == value
    assert (await settings_of(tenant.client))[name] == value


async def test_the_defaults_need_a_platform_key(tenant: Tenant) -> None:
    (await tenant.client.get(DEFAULTS)).problem(403, "forbidden")
    (await tenant.client.post(DEFAULTS, {"auditMode": "off"})).problem(403, "forbidden")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"auditMode": "some"}, "$.auditMode"),
        ({"autoCreateQueues": 1}, "$.autoCreateQueues"),
        ({"visibilityTimeoutMs": -1}, "$.visibilityTimeoutMs"),
        ({"visibilityTimeoutMs": 43_200_001}, "$.visibilityTimeoutMs"),
        ({"receiptTtlMaxMs": 999}, "$.receiptTtlMaxMs"),
        ({"idempotencyTtlMs": 999}, "$.idempotencyTtlMs"),
        ({"pullMax": 0}, "$.pullMax"),
        ({"pullMax": 1001}, "$.pullMax"),
        ({"maxMessageBytes": 1023}, "$.maxMessageBytes"),
        ({"maxMessageBytes": 2**23}, "$.maxMessageBytes"),
        ({"maxQueues": -1}, "$.maxQueues"),
        ({"maxKeys": 1.5}, "$.maxKeys"),
        ({"unknown": 1}, "$"),
    ],
    ids=str,
)
async def test_an_invalid_value_is_refused_with_the_field(gateway: Gateway, tenant: Tenant, body: object, path: str) -> None:
    problem = (await operator(gateway, tenant).post(SETTINGS, body)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path


# What they do, on every gateway


async def test_publishing_creates_a_queue_if_enabled(both: tuple[Tenant, Tenant]) -> None:
    here, there = both
    for one in both:
        assert (await one.client.post(f"/v1/queues/{fresh()}/messages", {"payload": 1})).status == 404
    await set_for_both(both, here.client, autoCreateQueues=True)
    for one in both:
        assert (await one.client.post(f"/v1/queues/{fresh()}/messages", {"payload": 1})).status == 201
    await set_for_both(both, there.client, autoCreateQueues=False)
    for one in both:
        assert (await one.client.post(f"/v1/queues/{fresh()}/messages", {"payload": 1})).status == 404


async def test_the_number_of_queues_is_limited(gateway: Gateway, both: tuple[Tenant, Tenant]) -> None:
    await both[0].queue("first")
    await set_for_both(both, operator(gateway, both[0]), maxQueues=1)
    for one in both:
        (await one.client.put("/v1/queues/second")).problem(403, "forbidden")
        assert (await one.client.put("/v1/queues/first")).status == 200


async def test_the_size_of_payloads_is_limited(gateway: Gateway, both: tuple[Tenant, Tenant]) -> None:
    queue = await both[0].queue()
    await set_for_both(both, operator(gateway, both[0]), maxMessageBytes=1024)
    for one in both:
        (await one.client.post(f"{queue}/messages", {"payload": "x" * 1025})).problem(413, "too-large")
        assert (await one.client.post(f"{queue}/messages", {"payload": "x" * 1022})).status == 201
        batch = {"messages": [{"payload": "x" * 1025}, {"payload": "x"}]}
        assert (await one.client.post(f"{queue}/messages/batch", batch)).ok()["failed"] == 1


async def test_pulls_are_limited(gateway: Gateway, both: tuple[Tenant, Tenant]) -> None:
    queue = await both[0].queue()
    await set_for_both(both, operator(gateway, both[0]), pullMax=2, receiptTtlMaxMs=5000)
    for one in both:
        problem = (await one.client.post(f"{queue}/pull", {"maxMessages": 3})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.maxMessages"
        problem = (await one.client.post(f"{queue}/pull", {"visibilityTimeoutMs": 5001})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.visibilityTimeoutMs"
        assert await one.pull(queue, 2, visibilityTimeoutMs=5000) == []


async def test_new_queues_use_the_default_and_existing_ones_keep_theirs(both: tuple[Tenant, Tenant]) -> None:
    here, there = both

    async def lease_of(queue: str) -> object:
        return (await here.client.get(queue)).ok()["settings"]["visibilityTimeoutMs"]

    old = await here.queue("old")
    await set_for_both(both, here.client, visibilityTimeoutMs=1234)
    assert await lease_of(await there.queue("new")) == 1234
    assert await lease_of(await there.queue("chosen", visibilityTimeoutMs=99)) == 99
    assert await lease_of(old) == 30_000


async def test_with_audit_mode_off_job_events_are_not_recorded(both: tuple[Tenant, Tenant]) -> None:
    here, there = both
    queue = await here.queue()
    await set_for_both(both, here.client, auditMode="off")
    for one in both:
        await one.publish(queue, 1)
        [message] = await one.pull(queue, waitMs=5000)
        await one.ack(queue, message["receiptId"])
    await set_for_both(both, here.client, auditMode="full")
    published = await there.publish(queue, 2)
    assert [event["job_id"] for event in await here.events()] == [published["jobId"]]


async def test_idempotency_keys_expire_after_the_setting(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await choose(tenant.client, idempotencyTtlMs=1000)
    first = await tenant.publish(queue, 1, idempotencyKey="k")
    assert (await tenant.publish(queue, 1, idempotencyKey="k"))["messageId"] == first["messageId"]

    async def is_forgotten() -> bool:
        return bool((await tenant.publish(queue, 1, idempotencyKey="k"))["messageId"] != first["messageId"])

    await eventually(is_forgotten)
