"""The archive: each answered command has its line next to its outcome event."""

import hashlib
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands.archive import CommandArchive
from postroad.commands.events import CommandRefused
from postroad.commands.registry_view import KnownSecret, RegistryView, Sender
from postroad.kernel.archived_text import ARCHIVED_BYTES_MAX, archived_text
from postroad.kernel.clock import now_ms, rfc3339
from tests.commands import senders
from tests.commands.senders import envelope, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant

PAYLOAD = b'{ "text" : "hi",\n\t"n": 1.0, "caf\\u00e9": "\xc3\xa9" }'


@pytest.fixture
async def sender(tenant: Tenant) -> senders.Sender:
    return await register_sender(tenant)


async def test_a_delivered_command_is_archived_with_its_text(tenant: Tenant, sender: senders.Sender) -> None:
    """Requirements 4, 21"""
    await register_target(tenant)
    await grant(tenant, "billing")
    sent_at = rfc3339(now_ms())
    done = (await sender.send(payload=PAYLOAD, timestamp=sent_at)).ok(202)
    [(event, line)] = await tenant.archived()
    assert event["event"] == "snavio.command.delivered"
    assert line == {
        "event": "command.archived",
        "event_id": line["event_id"],
        "timestamp": line["timestamp"],
        "tenant": tenant.id,
        "version": 1,
        "source": sender.source,
        "command_id": done["commandId"],
        "target": f"{tenant.id}/bot",
        "command.name": "post",
        "sent_at": sent_at,
        "payload": PAYLOAD.decode(),
        "payload_hash": None,
        "payload_bytes": len(PAYLOAD),
        "outcome": "delivered",
        "reason": None,
        "message_id": done["messageId"],
        "replay": False,
        "replay_reason": None,
        "replay_id": None,
    }


async def test_a_repeated_command_has_one_line_id(tenant: Tenant, sender: senders.Sender) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    body = envelope(sender.secret)
    for _ in range(2):
        (await sender.client.post("/v1/commands", body)).ok(202)
    assert len({line["event_id"] for _, line in await tenant.archived()}) == 1


async def test_failed_commands_are_archived_with_their_reason(gateway: Gateway, tenant: Tenant, sender: senders.Sender) -> None:
    other = await gateway.tenant()
    queue = await register_target(tenant)
    (await sender.send(payload=b"1")).problem(403, "acl-deny")
    (await sender.send(payload=b"2", name="none")).problem(404, "route-missing")
    (await sender.send(payload=b"3", target=f"{other.id}/bot")).problem(403, "acl-deny")
    await grant(tenant, "billing")
    (await tenant.client.delete(queue)).ok(204)
    (await sender.send(payload=b"4")).problem(502, "delivery-failure")
    lines = [line for _, line in await tenant.archived()]
    assert [(one["payload"], one["outcome"], one["reason"], one["target"]) for one in lines] == [
        ("1", "failed", "acl-deny", f"{tenant.id}/bot"),
        ("2", "failed", "route-missing", f"{tenant.id}/bot"),
        ("3", "failed", "acl-deny", f"{other.id}/bot"),
        ("4", "failed", "delivery-failure", f"{tenant.id}/bot"),
    ]
    assert await other.archived() == []


async def test_of_a_payload_without_a_valid_hmac_only_the_hash_is_stored(tenant: Tenant, sender: senders.Sender) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    forged, late, odd = (envelope(sender.secret, payload=b'{"secret":1}', timestamp=time) for time in (None, _long_ago(), None))
    forged["metadata"]["hmac"] = "0" * 64
    odd["command"]["source"] = "x"
    for body in (forged, late, odd):
        (await sender.client.post("/v1/commands", body)).problem(400, "command-invalid")
    (await sender.send_raw(b"not JSON")).problem(400, "command-invalid")
    lines = [line for _, line in await tenant.archived()]
    assert [one["reason"] for one in lines] == ["hmac-invalid", "timestamp-expired", "source-present", "not-json"]
    assert [one["payload"] for one in lines] == [None, '{"secret":1}', '{"secret":1}', None]
    assert lines[0]["payload_hash"] == hashlib.sha256(b'{"secret":1}').hexdigest()
    assert (lines[3]["payload_hash"], lines[3]["payload_bytes"], lines[3]["command_id"]) == (None, 0, None)
    assert lines[1]["command_id"] == late["metadata"]["id"] and lines[1]["sent_at"] == late["metadata"]["timestamp"]


async def test_routes_without_archive_leave_no_payload(gateway: Gateway, tenant: Tenant, sender: senders.Sender) -> None:
    await register_target(tenant, archive=False)
    (await sender.send()).problem(403, "acl-deny")
    await grant(tenant, "billing")
    (await sender.send()).ok(202)
    (await sender.send(timestamp=_long_ago())).problem(400, "command-invalid")
    assert await tenant.archived() == []
    assert len(await senders.outcomes(tenant)) == 3
    other = await gateway.tenant()
    await register_target(other, archive=False)
    (await sender.send(target=f"{other.id}/bot")).problem(403, "acl-deny")
    assert len(await tenant.archived()) == 1, "the route of another tenant is not revealed"


async def test_a_large_command_is_archived_whole(tenant: Tenant, sender: senders.Sender) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    texts = [msgspec.json.encode('\\"' * 60_000 + str(n)) for n in range(5)]
    for payload in texts:
        (await sender.send(payload=payload)).ok(202)
    assert [line["payload"].encode() for _, line in await tenant.archived()] == texts


async def test_readers_of_events_do_not_see_archived_lines(tenant: Tenant, sender: senders.Sender) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    async with tenant.client.events("/v1/telemetry/stream?events=>") as reader:
        (await sender.send(name="none")).problem(404, "route-missing")
        (await sender.send()).ok(202)
        seen: list[str] = []
        while "snavio.command.delivered" not in seen:
            found = await reader.next()
            assert found is not None
            seen.append(found.event)
    assert "snavio.command.failed" in seen and "command.archived" not in seen


def _long_ago() -> str:
    return rfc3339(now_ms() - 3_600_000)


# Queues


async def test_a_queue_with_archive_stores_its_messages_next_to_their_events(tenant: Tenant) -> None:
    queue = await tenant.queue(archive=True)
    (await tenant.client.post(f"{queue}/messages", data=b'{"payload": [1,\n 2], "headers": {"a": "b"}}', headers=_JSON)).ok(201)
    batch = {"messages": [{"payload": n} for n in range(3)]}
    (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
    pairs = await tenant.archived("JOBS")
    assert [event["event"] for event, _ in pairs] == ["job.queued"] * 4
    assert all(event["message_id"] == line["message_id"] and event["job_id"] == line["job_id"] for event, line in pairs)
    assert [line["payload"] for _, line in pairs] == ["[1,\n 2]", "0", "1", "2"]
    assert pairs[0][1]["headers"] == '{"a":"b"}'
    assert [one["event"] for one in await tenant.events("JOBS")] == ["job.queued"] * 4


async def test_a_queue_without_archive_stores_no_payload_elsewhere(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert await tenant.archived("JOBS") == []


_JSON = {"Content-Type": "application/json"}


# Rules


def test_a_text_is_archived_byte_for_byte_or_as_its_hash() -> None:
    assert archived_text(b'"\xc3\xa9"') == ('"\xe9"', None, 4)
    assert archived_text(b"x", is_hash_only=True) == (None, hashlib.sha256(b"x").hexdigest(), 1)
    large, odd = b"x" * (ARCHIVED_BYTES_MAX + 1), b"\xff"
    assert archived_text(large) == (None, hashlib.sha256(large).hexdigest(), len(large))
    assert archived_text(odd).text is None


_SENDER = Sender("acme", "billing", "i", frozenset(), {"hmac-v1": KnownSecret(b"secret", None, True)}, 0)
_JSON_VALUES = st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))


@given(st.binary(max_size=200) | st.dictionaries(st.text(max_size=9), _JSON_VALUES).map(msgspec.json.encode))
def test_any_body_has_a_line_without_its_text(body: bytes) -> None:
    """Without a valid HMAC, whatever was sent."""
    archive = CommandArchive(RegistryView(lambda _key: None, lambda _key: None, lambda _record, _secret: None), 1000)
    [line] = archive.invalid_line(CommandRefused(source="acme/billing", reason="not-json"), _SENDER, 0, body)
    assert (line.payload, line.outcome, line.reason) == (None, "invalid", "not-json")


@given(st.sampled_from(["payload", "timestamp", "name", "hmac", "version_id"]), st.text(max_size=5))
def test_a_payload_is_kept_only_as_it_was_signed(field: str, text: str) -> None:
    archive = CommandArchive(RegistryView(lambda _key: None, lambda _key: None, lambda _record, _secret: None), 10_000)
    event = CommandRefused(source="acme/billing", reason="timestamp-expired", command_id=str(uuid.uuid4()))
    body: dict[str, Any] = envelope("secret")
    [kept] = archive.invalid_line(event, _SENDER, 0, msgspec.json.encode(body))
    assert kept.payload == '{"text":"hi"}'
    part = body["command" if field in ("payload", "name") else "metadata"]
    if msgspec.json.encode(part[field]) == msgspec.json.encode(text):
        return
    part[field] = text
    [changed] = archive.invalid_line(event, _SENDER, 0, msgspec.json.encode(body))
    assert changed.payload is None and changed.payload_hash is not None
