"""Commands in the console: search, replays, the telemetry queue."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from playwright.sync_api import expect

from postroad.contracts.verdicts import FAIRNESS_VERDICTS, DominatedRoute, FairnessVerdict
from postroad.jetstream.connection import Connection, ConnectionSettings
from tests.browser.commands import register, send
from tests.browser.console import Console
from tests.installation import Installation

pytestmark = pytest.mark.browser


def test_a_dead_letter_is_sent_again_as_a_command(console: Console) -> None:
    assert send(console, register(console)) == 200
    [leased] = console.call("POST", "/v1/queues/bot-post/pull", {"waitMs": 5000})["messages"]
    console.call("POST", "/v1/queues/bot-post/nack", {"receiptId": leased["receiptId"], "action": "dlq", "reason": "down"})
    page = console.sign_in(path="/replays")
    page.get_by_role("button", name="New replay…").click()
    dialog = page.get_by_role("dialog", name="New replay")
    dialog.get_by_label(re.compile("^from"), exact=False).first.select_option("dead-letters")
    dialog.get_by_label(re.compile("^reason")).fill("the bot is back")
    dialog.get_by_label(re.compile("^queue")).fill("bot-post")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_have_text("1 command would be sent.")
    dialog.get_by_role("button", name="Replay 1 command").click()
    drawer = page.get_by_role("complementary", name="the bot is back")
    expect(drawer).to_contain_text("done")
    expect(drawer).to_contain_text("1 delivered")
    [again] = console.call("POST", "/v1/queues/bot-post/pull", {"waitMs": 5000})["messages"]
    assert again["headers"]["Snavio-Replay-Reason"] == "the bot is back"


def test_a_failed_command_is_found_with_its_payload_and_selected_for_a_replay(console: Console) -> None:
    secret = register(console)
    assert send(console, secret) == 200
    assert send(console, secret, name="none", payload=b'{"order": 10003}') == 404
    page = console.sign_in(path="/commands?tab=search&outcome=failed")
    row = page.get_by_role("row", name=re.compile("route-missing"))
    expect(row).to_be_visible()
    expect(page.get_by_role("table", name="Commands").get_by_text("delivered")).to_have_count(0)
    row.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary")).to_contain_text("10003")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Replay these…").click()
    dialog = page.get_by_role("dialog", name="New replay")
    dialog.get_by_label(re.compile("^reason")).first.fill("the route exists now")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_have_text("The pipeline selects the commands…")
    [replay] = console.call("GET", "/v1/replays")["replays"]
    assert (replay["state"], replay["selection"]["outcomes"], replay["dryRun"]) == ("selecting", ["failed"], True)
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog", name="New replay")).to_have_count(0)
    page.goto(f"{console.url}/replays/{replay['id']}")
    expect(page.get_by_role("complementary", name="the route exists now")).to_contain_text("cancelled")


def test_the_telemetry_queue_is_shown_from_the_first_service_on(console: Console) -> None:
    console.watched.allow("404")
    page = console.sign_in(path="/telemetry")
    expect(page.get_by_role("status").filter(has_text="no services yet")).to_be_visible()
    secret = register(console)
    for _ in range(2):
        assert send(console, secret) == 200
    waiting = page.locator(".panel", has_text="Waiting")
    expect(waiting).to_contain_text("2")
    messages = console.call("POST", "/v1/queues/_telemetry/pull", {"maxMessages": 10})["messages"]
    console.call("POST", "/v1/queues/_telemetry/ack", {"receiptIds": [one["receiptId"] for one in messages]})
    expect(page.locator(".panel", has_text="Acknowledged")).to_contain_text("2")


def test_a_dry_run_shows_the_check_that_fails(console: Console) -> None:
    register(console)
    page = console.sign_in(path="/commands/bot/post")
    page.get_by_label("Source").fill("billing")
    page.get_by_role("button", name="Dry run").click()
    grant = page.get_by_role("listitem").filter(has_text="grant")
    expect(grant).to_contain_text("✔")
    console.call("DELETE", "/v1/grants/bot/post/billing")
    page.get_by_role("button", name="Dry run").click()
    expect(grant).to_contain_text("✖")
    expect(grant).to_contain_text("no grant for")
    expect(page.get_by_text("acl-deny")).to_be_visible()
    assert console.call("GET", "/v1/queues/bot-post")["stats"]["ready"] == 0


def test_a_ban_by_the_auditor_appears_and_is_lifted(console: Console, installation: Installation) -> None:
    """The verdict takes the way of the pipeline's: the work queue, the leader's checks, the table of bans."""
    register(console)
    now = time.time()
    verdict = FairnessVerdict(
        v=1,
        tenant=console.tenant,
        source=f"{console.tenant}/billing",
        minute=datetime.fromtimestamp((now // 60 - 1) * 60, UTC),
        routes=(DominatedRoute(target=f"{console.tenant}/bot", command="post", share=0.9, dispatched=200),),
        violations=4,
        ban_until=datetime.fromtimestamp(now + 300, UTC),
    )
    page = console.sign_in(console.admin_key, f"/commands?tab=bans&tenant={console.tenant}")
    expect(page.get_by_text("No source is banned")).to_be_visible()
    with ThreadPoolExecutor(1) as thread:  # the browser's event loop runs in this one
        thread.submit(asyncio.run, published(installation.engine, verdict)).result()
    row = page.get_by_role("row", name=re.compile("billing.*auditor"))
    expect(row).to_be_visible()
    row.get_by_role("button", name="Lift…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Why it is lifted, for the audit log").fill("agreed with billing")
    dialog.get_by_role("button", name="Lift 1 ban").click()
    expect(page.get_by_text("No source is banned")).to_be_visible()
    assert console.call("GET", "/v1/bans")["bans"] == []


async def published(engine: ConnectionSettings, verdict: FairnessVerdict) -> None:
    connection = Connection(engine)
    await connection.open()
    try:
        subject = FAIRNESS_VERDICTS.subject_of(tenant=verdict.tenant)
        await connection.request(subject, msgspec.json.encode(verdict))
    finally:
        await connection.close()
