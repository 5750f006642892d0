"""Tenants, keys, JWT secrets, tokens, invites, settings and the audit log with both clients, against a running gateway."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from postroad.client.errors import (
    AlreadyExists,
    Forbidden,
    InviteEnded,
    InviteNotFound,
    KeyNotFound,
    PreconditionFailed,
    SecretNotFound,
    TenantDisabled,
    TenantNotFound,
    Unauthenticated,
)
from postroad.kernel.identity import ALL_SCOPES
from tests.client.conftest import Sdk, opened
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def in_a_day() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


# Tenants


async def test_the_lifecycle_of_a_tenant(platform: Sdk) -> None:
    name = fresh()
    made = await platform("tenants.create", name, description="of a test", auto_create_queues=True)
    assert (made.id, made.state, made.description) == (name, "ready", "of a test")
    with pytest.raises(AlreadyExists):
        await platform("tenants.create", name)

    assert await platform("tenants.get", name) == made
    assert name in [tenant.id for tenant in await platform("tenants.list", page_size=2)]
    assert (await platform("tenants.update", name, description="other")).description == "other"
    disabled = await platform("tenants.update", name, enabled=False)
    assert (disabled.state, disabled.description) == ("disabled", "other")
    assert (await platform("tenants.update", name, enabled=True)).state == "ready"
    assert (await platform("tenants.delete", name)).state == "deleting"
    with pytest.raises(TenantNotFound):
        await platform("tenants.get", fresh())
    with pytest.raises(PreconditionFailed):
        await platform("tenants.delete", "default")


async def test_a_tenants_key_cannot_manage_tenants(sdk: Sdk) -> None:
    with pytest.raises(Forbidden):
        await sdk("tenants.list")


async def test_a_platform_key_acts_for_the_named_tenant(kind: str, gateway: Gateway, tenant: Tenant) -> None:
    async with opened(kind, gateway.url, gateway.admin_key, tenant=tenant.id) as acting:
        me = await acting("keys.whoami")
        made = await acting("keys.create", "from above", ALL_SCOPES)
    assert (me.tenant, me.platform) == (tenant.id, True)
    assert made.record.tenant == tenant.id


# Keys


async def test_whoami_shows_the_permissions_of_the_key(sdk: Sdk, tenant: Tenant) -> None:
    me = await sdk("keys.whoami")
    assert (me.tenant, me.platform, me.credential, me.key_id) == (tenant.id, False, "key", tenant.record.id)
    assert set(me.scopes) == {"publish", "consume", "read", "write", "admin"}
    assert me.allowed_queues == ("*",)


async def test_a_key_has_the_permissions_that_it_was_created_with(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    await tenant.queue("orders")
    await tenant.queue("other")
    until = in_a_day()
    made = await sdk(
        "keys.create",
        "worker",
        scopes=["consume"],
        allowed_queues=["ord*"],
        allowed_topics=["t"],
        allowed_streams=["s"],
        expires_at=until,
    )
    assert made.key not in repr(made)
    record = made.record
    assert (record.name, record.scopes, record.allowed_queues) == ("worker", ("consume",), ("ord*",))
    assert (record.allowed_topics, record.allowed_streams, record.enabled) == (("t",), ("s",), True)
    assert datetime.fromisoformat(record.expires_at) == until
    assert record.created_by == tenant.record.id

    async with opened(kind, tenant.client.url, made.key) as limited:
        assert (await limited("queues.pull", "orders")).messages == []
        with pytest.raises(Forbidden):
            await limited("queues.pull", "other")
        with pytest.raises(Forbidden):
            await limited("queues.publish", "orders", 1)


async def test_omitted_arguments_keep_their_value(sdk: Sdk) -> None:
    key = (await sdk("keys.create", "one", scopes=["read"], expires_at=in_a_day())).record
    changed = await sdk("keys.update", key.id, name="two", allowed_queues=["a", "b*"])
    assert (changed.name, changed.scopes, changed.allowed_queues) == ("two", ("read",), ("a", "b*"))
    assert changed.expires_at == key.expires_at
    assert (await sdk("keys.update", key.id, expires_at=None)).expires_at is None
    assert (await sdk("keys.update", key.id, scopes=["read", "write"], allowed_topics=[], allowed_streams=["x"])).scopes == (
        "read",
        "write",
    )
    assert (await sdk("keys.update", key.id, enabled=False)).enabled is False
    assert (await sdk("keys.get", key.id)).enabled is False
    with pytest.raises(KeyNotFound):
        await sdk("keys.get", "0" * 16)


async def test_a_key_that_is_disabled_or_deleted_is_refused(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    made = await sdk("keys.create", "short-lived", ALL_SCOPES)
    async with opened(kind, tenant.client.url, made.key) as other:

        async def is_refused() -> bool:
            try:
                await other("keys.whoami")
            except Unauthenticated:
                return True
            return False

        assert not await is_refused()
        assert (await sdk("keys.disable", made.record.id)).enabled is False
        await eventually(is_refused)
        assert (await sdk("keys.enable", made.record.id)).enabled is True

        async def is_accepted() -> bool:
            return not await is_refused()

        await eventually(is_accepted)
        await sdk("keys.delete", made.record.id)
        await eventually(is_refused)
    with pytest.raises(PreconditionFailed):
        await sdk("keys.delete", tenant.record.id)


async def test_both_texts_of_a_rotated_key_are_valid_in_the_grace_period(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    first = await sdk("keys.create", "rotated", ALL_SCOPES)
    second = await sdk("keys.rotate", first.record.id, grace_seconds=600)
    assert second.record.id == first.record.id
    assert second.record.rotated_until is not None
    for text in (first.key, second.key):
        async with opened(kind, tenant.client.url, text) as other:
            assert (await other("keys.whoami")).key_id == first.record.id
    third = await sdk("keys.rotate", first.record.id, grace_seconds=0)

    async def are_over() -> bool:
        for text in (first.key, second.key):
            async with opened(kind, tenant.client.url, text) as other:
                try:
                    await other("keys.whoami")
                    return False
                except Unauthenticated:
                    pass
        return True

    await eventually(are_over)
    assert third.record.rotated_until is None


async def test_keys_are_listed_in_pages(sdk: Sdk, platform: Sdk, tenant: Tenant) -> None:
    for number in range(4):
        await sdk("keys.create", f"key {number}", ALL_SCOPES)
    names = [key.name for key in await sdk("keys.list", page_size=2)]
    assert names == ["a test's", "key 0", "key 1", "key 2", "key 3"]

    made = await platform("keys.create", "operator", ALL_SCOPES, platform=True)
    assert made.key.startswith("pr_admin_")
    listed = await platform("keys.list", platform=True)
    assert made.record.id in [key.id for key in listed]
    assert {key.tenant for key in listed} == {None}
    await platform("keys.delete", made.record.id)
    with pytest.raises(Forbidden):
        await sdk("keys.list", platform=True)


async def test_a_secret_in_place_of_an_id_is_refused(sdk: Sdk, tenant: Tenant) -> None:
    for call in ("keys.get", "keys.delete", "keys.rotate", "invites.revoke"):
        with pytest.raises(ValueError, match="the id") as refused:
            await sdk(call, tenant.key)
        assert tenant.key not in str(refused.value)


async def test_a_time_without_a_zone_is_refused(sdk: Sdk) -> None:
    with pytest.raises(ValueError, match="zone"):
        await sdk("keys.create", "x", ALL_SCOPES, expires_at=datetime(2030, 1, 1))


# Web sessions


async def test_a_sign_in_link_and_the_features_of_the_installation(sdk: Sdk, gateway: Gateway) -> None:
    link = await sdk("web_sessions.create_link", expires_in_seconds=60)
    assert link.url.startswith(f"{gateway.url}/?access=") and link.url not in repr(link)
    shown = await sdk("web_sessions.get")
    assert not shown.signed_in and "queues" in shown.features and shown.version


# JWT secrets and stream tokens


async def test_jwt_secrets_are_added_listed_and_deleted(sdk: Sdk) -> None:
    made = await sdk("jwt_secrets.create", "made here", expires_at=in_a_day())
    own = await sdk("jwt_secrets.create", "own", secret="of the tenant's own, and long enough")
    assert len(made.secret) >= 32
    assert made.secret not in repr(made)
    assert own.secret == "of the tenant's own, and long enough"

    async def are_listed() -> bool:
        return [secret.name for secret in await sdk("jwt_secrets.list")] == ["made here", "own"]

    await eventually(are_listed)
    await sdk("jwt_secrets.delete", made.record.id)

    async def is_gone() -> bool:
        return [secret.name for secret in await sdk("jwt_secrets.list")] == ["own"]

    await eventually(is_gone)
    with pytest.raises(SecretNotFound):
        await sdk("jwt_secrets.delete", "nowhere")


async def test_a_token_opens_its_stream(sdk: Sdk, gateway: Gateway) -> None:
    made = await sdk("tokens.create", "telemetry", expires_in_seconds=60, once=True)
    assert made.resource == "telemetry"
    assert made.token not in repr(made)
    async with gateway.anonymous.events(f"/v1/telemetry/stream?bearer={made.token}") as reader:
        assert reader.answer.status == 200


# Invites


async def test_an_invite_is_claimed_without_a_key(kind: str, platform: Sdk, anonymous: Sdk, gateway: Gateway) -> None:
    name = fresh()
    made = await platform("invites.create", tenant=name, note="for a test", auto_create_queues=True, expires_in_seconds=3600)
    assert made.code not in repr(made)
    assert (made.invite.state, made.invite.tenant, made.invite.note) == ("open", name, "for a test")

    claimed = await anonymous("invites.claim", made.code, key_name="mine")
    assert (claimed.record.tenant, claimed.record.name) == (name, "mine")
    async with opened(kind, gateway.url, claimed.key) as owner:
        assert (await owner("keys.whoami")).tenant == name
        await owner("queues.publish", "made-by-publishing", 1)
    with pytest.raises(InviteEnded):
        await anonymous("invites.claim", made.code)

    async def is_claimed() -> bool:
        found = {invite.id: invite for invite in await platform("invites.list", page_size=2)}
        return bool(found[made.invite.id].claimed_tenant == name)

    await eventually(is_claimed)


async def test_a_revoked_invite_is_not_found(platform: Sdk, anonymous: Sdk) -> None:
    made = await platform("invites.create")
    await platform("invites.revoke", made.invite.id)
    with pytest.raises(InviteNotFound):
        await anonymous("invites.claim", made.code, tenant=fresh())
    with pytest.raises(InviteNotFound):
        await platform("invites.revoke", made.invite.id)


# Settings and the audit log


async def test_settings_are_changed_and_reset(sdk: Sdk, platform: Sdk) -> None:
    before = await sdk("settings.get")
    assert before.settings.audit_mode == "full"

    async def has_settings(sdk: Sdk, **wanted: object) -> bool:
        found = (await sdk("settings.get")).settings
        return all(getattr(found, name) == value for name, value in wanted.items())

    await sdk("settings.update", audit_mode="jobs_only", visibility_timeout_ms=1234)
    await eventually(lambda: has_settings(sdk, audit_mode="jobs_only", visibility_timeout_ms=1234))
    assert (await sdk("settings.get")).chosen == {**before.chosen, "auditMode": "jobs_only", "visibilityTimeoutMs": 1234}
    await sdk("settings.reset", "audit_mode", "visibility_timeout_ms")
    await eventually(lambda: has_settings(sdk, audit_mode="full", visibility_timeout_ms=before.settings.visibility_timeout_ms))
    with pytest.raises(Forbidden, match="maxQueues"):
        await sdk("settings.update", max_queues=1)


async def test_platform_settings_are_the_defaults_of_tenants(sdk: Sdk, platform: Sdk) -> None:
    changed = await platform("settings.update", pull_max=321, platform=True)
    try:
        assert "pullMax" in changed.chosen or (await platform("settings.get", platform=True)).settings.pull_max == 321

        async def holds() -> bool:
            return bool((await sdk("settings.get")).settings.pull_max == 321)

        await eventually(holds)
    finally:
        await platform("settings.reset", "pull_max", platform=True)
    with pytest.raises(Forbidden):
        await sdk("settings.get", platform=True)


async def test_the_audit_log_is_listed_newest_first_and_filtered(sdk: Sdk, platform: Sdk, tenant: Tenant) -> None:
    start = datetime.now(UTC) - timedelta(seconds=5)
    key = (await sdk("keys.create", "audited", ALL_SCOPES)).record
    for name in ("one", "two", "three"):
        await sdk("keys.update", key.id, name=name)

    entries = await sdk("audit.list", page_size=2)
    assert [entry.action for entry in entries] == ["key.change"] * 3 + ["key.create"]
    assert [entry.after["name"] for entry in entries] == ["three", "two", "one", "audited"]
    newest = entries[0]
    assert (newest.tenant, newest.target, newest.actor_key_id) == (tenant.id, key.id, tenant.record.id)
    assert (newest.before or {})["name"] == "two"

    async def ids(sdk: Sdk, **filters: object) -> list[str]:
        return [entry.id for entry in await sdk("audit.list", **filters)]

    everything = [entry.id for entry in entries]
    assert await ids(sdk, action="key.create") == everything[-1:]
    assert await ids(sdk, action="key.*", target=key.id, actor=tenant.record.id) == everything
    assert await ids(sdk, request_id=newest.request_id) == everything[:1]
    assert await ids(sdk, since=start, until=datetime.now(UTC) + timedelta(seconds=5)) == everything
    assert await ids(sdk, until=start) == []
    assert await ids(platform, tenant=tenant.id) == everything
    with pytest.raises(Forbidden):
        await sdk("audit.list", tenant="default")


async def test_the_audit_log_is_verified(sdk: Sdk, platform: Sdk) -> None:
    await sdk("keys.create", "audited", ALL_SCOPES)
    found = await platform("audit.verify")
    assert found.intact and found.verified + found.unverified > 0
    with pytest.raises(Forbidden):
        await sdk("audit.verify")


async def test_a_disabled_tenant_raises_tenant_disabled(platform: Sdk, sdk: Sdk, tenant: Tenant) -> None:
    await platform("tenants.update", tenant.id, enabled=False)

    async def is_updated() -> bool:
        try:
            await sdk("keys.whoami")
        except TenantDisabled:
            return True
        return False

    await eventually(is_updated)


async def test_aws_credentials_of_a_key(sdk: Sdk) -> None:
    key = await sdk("keys.create", "aws", ALL_SCOPES)
    issued = await sdk("keys.create_aws_key", key.record.id, grace_seconds=60)
    assert issued.access_key_id == f"PRAK{key.record.id}" == issued.record.aws_access_key_id
    assert len(issued.secret_access_key) == 40 and issued.secret_access_key not in repr(issued)
    assert issued.account_id == (await sdk("keys.whoami")).account_id
    again = await sdk("keys.create_aws_key", key.record.id)
    assert again.access_key_id == issued.access_key_id and again.secret_access_key != issued.secret_access_key
    await sdk("keys.delete_aws_key", key.record.id)
    assert (await sdk("keys.get", key.record.id)).aws_access_key_id is None
