"""Alert channels: confirmation, signatures, failures, forbidden addresses."""

from collections.abc import Iterator

import msgspec
import pytest
from standardwebhooks import Webhook

from postroad.alerts.capability import AlertsCapability
from postroad.alerts.email_sender import EmailFailed, EmailSender
from postroad.alerts.records import Due
from tests.alerts.mail_server import Mailbox
from tests.alerts.test_alerts import alerts, confirmed_email, counted, invalid, sender, use_channels, webhook
from tests.commands.senders import Sender
from tests.gateway import Gateway, Tenant
from tests.outbound.test_rules import REFUSED_ADDRESSES, REFUSED_URLS
from tests.subscriptions.receiver import Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.engine

__all__ = ["sender"]


async def test_a_wrong_code_does_not_confirm_an_address(tenant: Tenant, mailbox: Mailbox, node: Gateway) -> None:
    address, path = f"{tenant.id}@example.com", "/v1/alert-channels/mail"
    (await tenant.client.put(path, {"kind": "email", "address": address})).ok(201)
    (await tenant.client.put(path, {"kind": "email", "address": address})).problem(409, "precondition-failed")
    (await tenant.client.post(f"{path}/test")).problem(409, "precondition-failed")
    for _ in range(5):
        (await tenant.client.post(f"{path}/confirm", {"code": "00000000"})).problem(422, "confirmation-code-invalid")
    [message] = mailbox.to(address)
    code = message.get_content().partition("Code: ")[2][:8]
    (await tenant.client.post(f"{path}/confirm", {"code": code})).problem(422, "confirmation-code-invalid")
    node.clock.ahead_ms = 61_000
    (await tenant.client.put(path, {"kind": "email", "address": address})).ok()
    code = mailbox.to(address)[1].get_content().partition("Code: ")[2][:8]
    assert (await tenant.client.post(f"{path}/confirm", {"code": code})).ok()["state"] == "active"
    assert (await tenant.client.post(f"{path}/test")).ok()["outcome"] == "delivered"
    assert mailbox.to(address)[2]["Subject"] == "Test of the alert channel mail"


async def test_another_address_must_be_confirmed_again(tenant: Tenant, mailbox: Mailbox) -> None:
    await confirmed_email(tenant, mailbox)
    body = {"kind": "email", "address": f"new-{tenant.id}@example.com"}
    (await tenant.client.put("/v1/alert-channels/mail", body)).problem(409, "precondition-failed")


@pytest.mark.parametrize("address", ["a", "a@b", "A <a@b.example>", "a@b.example\nBcc: c@d.example", "ä@b.example", ""])
async def test_an_invalid_address_is_refused(tenant: Tenant, address: str) -> None:
    answer = await tenant.client.put("/v1/alert-channels/mail", {"kind": "email", "address": address})
    answer.problem(422, "invalid-body")


async def test_an_address_that_fits_in_no_header_is_a_failed_email() -> None:
    """A notification to it is retried and then given up, like any other."""
    with pytest.raises(EmailFailed):
        await EmailSender("smtp+plain://127.0.0.1:1", "a@b.example").send("c@d.example\n", "subject", "body", "id")


async def test_addresses_of_the_internal_network_are_refused(tenant: Tenant) -> None:
    """The guard's own matrix, except what this node allows: loopback addresses, and names that may have them."""
    hosts = [one for one in REFUSED_ADDRESSES if "127.0.0.1" not in one and "7f00" not in one and not one.startswith("127.")]
    urls = [f"https://[{one}]/" if ":" in one else f"https://{one}/" for one in hosts]
    urls += [url for url, _ in REFUSED_URLS if url != "http://example.com/"]
    for url in (*urls, "http://10.0.0.1/", "http://169.254.169.254/latest", "http://metadata.google.internal@10.0.0.1/"):
        answer = await tenant.client.put("/v1/alert-channels/hook", {"kind": "webhook", "url": url})
        assert (answer.status, answer.json.get("code")) == (422, "invalid-body"), url


async def test_both_secrets_sign_during_a_rotation(tenant: Tenant, receiver: Receiver) -> None:
    first = await webhook(tenant, receiver)
    second = (await tenant.client.post("/v1/alert-channels/hook/rotate")).ok()["secret"]
    assert first != second
    assert (await tenant.client.post("/v1/alert-channels/hook/test")).ok()["outcome"] == "delivered"
    [request] = receiver.received
    for secret in (first, second):
        assert Webhook(secret).verify(request.body, request.headers)["type"] == "alert.test"
    shown = (await tenant.client.get("/v1/alert-channels/hook")).ok()
    assert shown["secrets"] == 2 and "secret" not in shown


async def test_a_failing_endpoint_is_tried_again_until_it_takes_the_notification(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    redirect = (302, {"Location": receiver.url}, b"")
    answers: Iterator[int | tuple[int, dict[str, str], bytes]] = iter([503, redirect, 429, 200])
    receiver.answer = lambda _request: next(answers)
    await invalid(sender)
    for count in range(1, 5):
        await eventually(lambda: len(receiver.received) >= count)  # noqa: B023
        node.clock.ahead_ms += 3_600_000
    await eventually(lambda: _is_sent(tenant))
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
    assert len(receiver.received) == 4
    attempts = (await tenant.client.get("/v1/alert-channels/hook")).ok()["attempts"]
    assert [one["outcome"] for one in attempts] == ["delivered", "transient", "transient", "transient"]


async def more_rules(tenant: Tenant, count: int) -> None:
    """Rules for invalid commands, each of which makes an alert of its own."""
    for number in range(count):
        rule = {"events": "snavio.command.invalid", "channels": ["hook"]}
        (await tenant.client.put(f"/v1/alert-rules/r{number}", rule)).ok(201)


async def test_an_endpoint_that_fails_is_left_alone_with_all_its_notifications(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    """Else each of them would be an attempt at once, and a slow endpoint would take a turn of the others for each."""
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    await more_rules(tenant, 4)
    receiver.answer = lambda _request: 503
    await invalid(sender)
    book = node.node.platform.use(AlertsCapability).processor.book

    def due() -> list[Due]:
        return [one.due["hook"] for one in book.alerts.values() if one.tenant == tenant.id]

    await eventually(lambda: len(due()) == 5 and all(one.next_ms for one in due()))
    assert sorted(one.attempts for one in due()) == [0, 0, 0, 0, 1], "and the failed one is the last to be tried again"
    assert len({one.next_ms for one in due()}) == len(receiver.received) == 1
    receiver.answer = lambda _request: 200
    node.clock.ahead_ms += 60_000
    await eventually(lambda: _all_sent(tenant))
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 5


async def test_a_digest_that_failed_is_sent_again_as_soon_as_a_single_notification(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    await more_rules(tenant, 24)
    receiver.answer = lambda _request: 503
    await invalid(sender)
    book = node.node.platform.use(AlertsCapability).processor.book

    def waits() -> list[int]:
        due = [one.due["hook"] for one in book.alerts.values() if one.tenant == tenant.id]
        return [one.next_ms - node.clock() for one in due] if len(due) == 25 and all(one.next_ms for one in due) else []

    await eventually(waits)
    assert max(waits()) <= 10_000


async def test_a_notification_that_always_fails_holds_up_no_other(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    await more_rules(tenant, 2)
    receiver.answer = lambda request: 503 if request.headers["webhook-id"] == receiver.received[0].headers["webhook-id"] else 200
    await invalid(sender)
    await eventually(lambda: len(receiver.received) == 1)
    node.clock.ahead_ms += 60_000
    await eventually(lambda: len({one.headers["webhook-id"] for one in receiver.received}) == 3)


async def test_an_endpoint_that_hangs_is_tried_again(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.alerts.channels._TIMEOUT_MS", 200)
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    receiver.hold()
    await invalid(sender)

    async def outcomes() -> list[tuple[str, str | None]]:
        shown = (await tenant.client.get("/v1/alert-channels/hook")).ok()
        return [(one["outcome"], one.get("error")) for one in shown.get("attempts", [])]

    await eventually(outcomes)
    assert await outcomes() == [("transient", "timeout")]
    receiver.released.set()
    monkeypatch.undo()
    node.clock.ahead_ms += 3_600_000
    await eventually(lambda: _is_sent(tenant))
    assert [one[0] for one in await outcomes()] == ["delivered", "transient"]
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1


async def _is_sent(tenant: Tenant) -> bool:
    found = await alerts(tenant)
    return bool(found) and not found[0].get("pending")


async def test_a_notification_is_given_up_after_a_day(node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    receiver.answer = lambda _request: 503
    await invalid(sender)
    await eventually(lambda: receiver.received)
    assert not await _is_sent(tenant)
    node.clock.ahead_ms += 24 * 3_600_000
    await eventually(lambda: _is_sent(tenant))
    [alert] = await alerts(tenant)
    assert alert["undelivered"] == ["hook"]
    shown = (await node.admin.get("/api/control/alerts?limit=1000")).ok()["alerts"]
    assert alert["id"] in [one["id"] for one in shown]


async def test_a_gone_endpoint_disables_its_channel_and_a_refusal_is_shown(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    receiver.answer = lambda _request: 410
    await invalid(sender)
    alert = await counted(tenant, 1)
    await eventually(lambda: _is_sent(tenant))
    assert (await alerts(tenant))[0]["undelivered"] == ["hook"]
    channel = (await tenant.client.get("/v1/alert-channels/hook")).ok()
    assert (channel["state"], channel["reason"]) == ("disabled", "the endpoint answered 410")
    shown = (await node.admin.get("/api/control/alerts?limit=1000")).ok()["alerts"]
    assert alert["id"] in [one["id"] for one in shown], "a critical alert that no channel got goes to the operators"


async def test_a_slow_channel_delays_no_other(sender: Sender, tenant: Tenant, receiver: Receiver, mailbox: Mailbox) -> None:
    await webhook(tenant, receiver)
    address = await confirmed_email(tenant, mailbox)
    await use_channels(tenant, "hook", "mail")
    receiver.hold()
    await invalid(sender)
    await eventually(lambda: receiver.in_flight and len(mailbox.to(address)) == 2)
    receiver.released.set()


async def test_many_alerts_of_one_channel_are_one_digest(
    node: Gateway, sender: Sender, tenant: Tenant, receiver: Receiver
) -> None:
    await webhook(tenant, receiver)
    await use_channels(tenant, "hook")
    receiver.answer = lambda _request: 503
    await invalid(sender)
    await eventually(lambda: receiver.received)
    for number in range(25):
        rule = {"events": "snavio.command.invalid", "channels": ["hook"]}
        (await tenant.client.put(f"/v1/alert-rules/r{number}", rule)).ok(201)
    receiver.hold()
    await invalid(sender)
    await eventually(lambda: _open_count(tenant, 26))
    receiver.answer = lambda _request: 200
    node.clock.ahead_ms += 3_600_000 - 400_000
    receiver.released.set()
    await eventually(lambda: _all_sent(tenant))
    digests = [msgspec.json.decode(one.body) for one in receiver.received]
    assert any(one["type"] == "alert.digest" and len(one["alerts"]) > 20 for one in digests)


async def _open_count(tenant: Tenant, count: int) -> bool:
    return len(await alerts(tenant)) == count


async def _all_sent(tenant: Tenant) -> bool:
    return all(not one.get("pending") for one in await alerts(tenant))


async def test_a_tenant_sends_ten_codes_an_hour_whatever_it_deletes(tenant: Tenant, mailbox: Mailbox, node: Gateway) -> None:
    """An address that nobody confirmed must not be flooded."""
    path, body = "/v1/alert-channels/mail", {"kind": "email", "address": f"victim-{tenant.id}@example.com"}
    for _ in range(10):
        (await tenant.client.put(path, body)).ok(201)
        (await tenant.client.delete(path)).ok(204)
    (await tenant.client.put(path, body)).problem(409, "precondition-failed")
    assert len(mailbox.to(body["address"])) == 10
    node.clock.ahead_ms = 3_600_001
    (await tenant.client.put(path, body)).ok(201)


async def test_a_new_channel_does_not_show_the_attempts_of_a_deleted_one(tenant: Tenant, receiver: Receiver) -> None:
    await webhook(tenant, receiver)
    assert (await tenant.client.post("/v1/alert-channels/hook/test")).ok()["outcome"] == "delivered"
    assert (await tenant.client.get("/v1/alert-channels/hook")).ok()["attempts"]
    (await tenant.client.delete("/v1/alert-channels/hook")).ok(204)
    await webhook(tenant, receiver)
    assert not (await tenant.client.get("/v1/alert-channels/hook")).ok().get("attempts")


async def test_changes_are_audited_without_secrets(sender: Sender, tenant: Tenant, receiver: Receiver) -> None:
    client = tenant.client
    secrets = [await webhook(tenant, receiver)]
    secrets.append((await client.post("/v1/alert-channels/hook/rotate")).ok()["secret"])
    await use_channels(tenant, "hook", minCount=1)
    (await client.put("/v1/alert-rules/mine", {"events": "route.*"})).ok(201)
    (await client.delete("/v1/alert-rules/mine")).ok(204)
    await invalid(sender)
    alert = (await counted(tenant, 1))["id"]
    for verb in ("ack", "resolve"):
        (await client.post(f"/v1/alerts/{alert}/{verb}")).ok()
    (await client.delete("/v1/alert-rules/command-invalid")).ok(204)
    (await client.delete("/v1/alert-channels/hook")).ok(204)
    answer = await client.get("/api/control/audit?limit=100")
    entries = [one for one in answer.ok()["entries"] if one["action"].startswith("alert")]
    assert sorted((one["action"], one["target"]) for one in entries) == [
        ("alert-channel.create", "hook"),
        ("alert-channel.delete", "hook"),
        ("alert-channel.rotate", "hook"),
        ("alert-rule.change", "command-invalid"),
        ("alert-rule.create", "mine"),
        ("alert-rule.delete", "command-invalid"),
        ("alert-rule.delete", "mine"),
        ("alert.ack", alert),
        ("alert.resolve", alert),
    ]
    assert {one["actorKeyId"] for one in entries} == {tenant.record.id}
    [changed] = [one for one in entries if one["action"] == "alert-rule.change"]
    assert (changed["before"]["channels"], changed["after"]["channels"]) == (["dashboard"], ["hook"])
    assert not [one for one in secrets if one in answer.body.decode()]
