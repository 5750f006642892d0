"""Queues, messages and dead letters, as an operator works with them."""

import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser
TOO_LARGE = """(field) => {
  field.value = JSON.stringify({ order: 'x'.repeat(1_100_000) })
  field.dispatchEvent(new Event('input', { bubbles: true }))
}"""


def test_the_first_run_leads_to_a_pulled_message(console: Console) -> None:
    page = console.sign_in()
    for step in range(3):
        page.get_by_role("button", name="Do it here").and_(page.locator(".primary")).click()
        expect(page.get_by_text("✔ done")).to_have_count(step + 1)
    expect(page.get_by_text("Pulled and acknowledged")).to_contain_text('{"order":10001}')


def test_numbers_change_without_a_reload_and_typed_text_stays(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in(path="/queues/orders")
    field = page.get_by_label("Search messages")
    field.click()
    page.keyboard.type("abc")
    expect(page.get_by_text("0 ready")).to_be_visible()
    for number in range(3):
        console.publish("orders", {"number": number})
    expect(page.get_by_text("3 ready")).to_be_visible()
    expect(field).to_be_focused()
    expect(field).to_have_value("abc")


def test_why_a_message_failed_is_first_in_its_drawer(console: Console) -> None:
    console.queue("orders", maxAttempts=2, retryDelaysMs=[0])
    message = console.kill("orders", {"order": 10003}, "HTTP 500 from crm")
    page = console.sign_in(path="/queues/orders?tab=dead")
    page.get_by_role("row", name=re.compile("HTTP 500 from crm")).focus()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("complementary", name=message)
    expect(drawer.locator(".note")).to_contain_text("HTTP 500 from crm")
    expect(drawer.get_by_text("leased", exact=True)).to_be_visible()
    expect(drawer.locator("pre")).to_contain_text("10003")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)


def test_a_redrive_of_a_group_moves_only_these(console: Console) -> None:
    console.queue("orders")
    for number in range(3):
        console.kill("orders", {"number": number}, "HTTP 500 from crm")
    console.kill("orders", {"number": 9}, "550 no such mailbox")
    page = console.sign_in(path="/queues/orders?tab=dead")
    page.get_by_role("button", name=re.compile("from crm")).click()
    page.locator("body").press("r")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Redrive 3 messages").click()
    expect(page.get_by_role("status").filter(has_text="3 moved")).to_be_visible()
    left = console.call("GET", "/v1/queues/orders/dlq")
    assert [one["lastError"] for one in left["messages"]] == ["550 no such mailbox"]
    assert console.call("GET", "/v1/queues/orders")["stats"]["ready"] == 3


def test_a_purge_needs_the_name_and_is_audited(console: Console) -> None:
    console.queue("orders")
    console.publish("orders", {"number": 1})
    page = console.sign_in(path="/queues/orders")
    page.get_by_role("button", name="Purge…").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Purge 1 message")
    expect(confirm).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("orders")
    confirm.click()
    expect(page.get_by_text("Nothing waits here")).to_be_visible()
    page.goto(console.url + "/admin/audit?action=queue.purge")
    expect(page.get_by_role("cell", name="queue.purge")).to_be_visible()


def test_a_purge_removes_what_the_list_shows_and_nothing_else(console: Console) -> None:
    console.queue("orders")
    for number in (1, 2, 3):
        console.publish("orders", {"number": number, "kind": "parcel" if number < 3 else "letter"})
    console.call("POST", "/v1/queues/orders/pull", {"maxMessages": 1, "waitMs": 5000})  # a lease does not protect it
    page = console.sign_in(path="/queues/orders?search=parcel")
    page.get_by_role("button", name="Purge filtered…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("text “parcel” are removed, leased ones included")
    dialog.get_by_role("textbox").fill("orders")
    dialog.get_by_role("button", name="Purge 2 messages").click()
    expect(dialog).to_have_count(0)
    [left] = console.call("GET", "/v1/queues/orders/messages")["messages"]
    assert left["payload"]["number"] == 3
    console.open("/queues/orders?tab=jobs&search=parcel").get_by_role("button", name="Purge…").click()
    expect(dialog).to_contain_text("All messages of orders are removed: ready, leased and delayed ones")
    expect(dialog.get_by_role("button", name="Purge 1 message")).to_be_disabled()


def test_a_redrive_is_cancelled_and_the_rest_stays(console: Console) -> None:
    console.queue("orders")
    for number in range(30):
        console.kill("orders", {"number": number}, "HTTP 500 from crm")
    page = console.sign_in(path="/queues/orders?tab=dead")
    page.get_by_role("button", name="Redrive…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("rate per second").fill("1")
    dialog.get_by_role("button", name="Redrive 30 messages").click()
    page.get_by_role("link", name="Details").click()
    page.get_by_role("button", name="Cancel task").click()
    expect(page.get_by_role("complementary")).to_contain_text("cancelled")
    stats = console.call("GET", "/v1/queues/orders")["stats"]
    assert stats["dead"] > 0 and stats["dead"] + stats["ready"] == 30


def test_a_redrive_applies_the_time_on_screen(console: Console) -> None:
    console.queue("orders")
    console.kill("orders", {"number": 1}, "HTTP 500 from crm")
    console.kill("orders", {"number": 2}, "HTTP 500 from crm")
    newest = console.call("GET", "/v1/queues/orders/dlq?order=newest")["messages"][0]
    page = console.sign_in(path=f"/queues/orders?tab=dead&from={urllib.parse.quote(newest['deadAt'])}")
    expect(page.get_by_text("1 of 2 dead letters match")).to_be_visible()
    page.get_by_role("button", name="Redrive filtered…").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1 message").click()
    expect(page.get_by_role("status").filter(has_text="1 moved")).to_be_visible()
    [left] = console.call("GET", "/v1/queues/orders/dlq")["messages"]
    assert left["payload"]["number"] == 1


def test_numbers_keep_their_digits(console: Console) -> None:
    """A number of JavaScript has 53 bits; what is shown and published again is what was sent."""
    console.queue("orders")
    text = b'{"payload": {"id": 12345678901234567891, "amount": 0.12345678901234567891, "small": 7}}'
    message = console.call("POST", "/v1/queues/orders/messages", text)["messageId"]
    page = console.sign_in(path=f"/queues/orders?id={message}")
    drawer = page.get_by_role("complementary")
    expect(drawer.locator("pre").first).to_contain_text('"id": 12345678901234567891,')
    expect(drawer.locator("pre").first).to_contain_text('"amount": 0.12345678901234567891,')
    drawer.get_by_role("button", name="Publish again…").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_role("dialog").get_by_text("Stored as")).to_be_visible()
    again = console.call("GET", "/v1/queues/orders/messages?order=newest&limit=1")["messages"][0]
    assert again["messageId"] != message and again["payload"]["id"] == 12345678901234567891


def test_settings_can_be_copied_for_apply(console: Console, tmp_path: Path) -> None:
    console.watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console.queue("orders", maxAttempts=7, retryDelaysMs=[1000, 2000])
    page = console.sign_in(path="/queues/orders?tab=settings")
    page.get_by_role("button", name="Copy for postroad apply").click()
    expect(page.get_by_text("✔ Copied")).to_be_visible()
    file = tmp_path / "orders.json"
    file.write_text(page.evaluate("navigator.clipboard.readText()"))
    assert postroad(console, "diff", "-f", str(file)).returncode == 0
    file.write_text(file.read_text().replace('"maxAttempts": 7', '"maxAttempts": 8').replace("{", '{"name": "shop",', 1))
    assert postroad(console, "apply", "-f", str(file), "--yes").returncode == 0
    assert console.call("GET", "/v1/queues/orders")["settings"]["maxAttempts"] == 8


def test_what_apply_has_created_is_shown_by_its_name(console: Console, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nqueues: {orders: {}, failed: {}}\ntopics: {prices: {}}\n")
    assert postroad(console, "apply", "-f", str(file), "--yes").returncode == 0
    page = console.sign_in(path="/admin/manifests")
    page.get_by_role("row", name=re.compile("shop")).press("Enter")
    drawer = page.get_by_role("complementary", name="shop")
    expect(drawer.get_by_role("link", name="failed")).to_be_visible()
    drawer.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    console.open("/admin/manifests?id=shop").get_by_role("button", name="Forget…").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget 1 manifest").click()
    expect(page.get_by_text("Nothing was applied yet")).to_be_visible()
    assert console.status("GET", "/v1/queues/orders") == 200


def postroad(console: Console, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "POSTROAD_URL": console.url, "POSTROAD_KEY": console.key}
    command = [sys.executable, "-m", "postroad", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_queue_is_paused_and_resumed(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in(path="/queues/orders")
    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause the queue").click()
    expect(page.get_by_text("▮▮ paused")).to_be_visible()
    assert console.call("GET", "/v1/queues/orders")["paused"] is True
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text("▮▮ paused")).to_have_count(0)


def test_errors_of_a_publish_are_explained_in_the_dialog(console: Console) -> None:
    console.watched.allow("422|413")
    console.queue("orders", schema={"type": "object", "required": ["order"]})
    page = console.sign_in(path="/queues/orders")
    expect(page.get_by_role("button", name="Publish…")).to_be_enabled()  # keys of the page work once it is there
    page.locator("body").press("p")
    dialog = page.get_by_role("dialog", name="Publish to orders")
    dialog.get_by_label("Payload (JSON)").fill("{not json")
    expect(dialog.get_by_role("status").first).to_contain_text("The payload is not JSON")
    expect(dialog.get_by_role("button", name="Publish")).to_be_disabled()
    dialog.get_by_label("Payload (JSON)").fill('{"other": 1}')
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_contain_text("order")
    dialog.get_by_label("Payload (JSON)").evaluate(TOO_LARGE)
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_contain_text("HTTP 413")
    dialog.get_by_label("Payload (JSON)").fill('{"order": 1}')
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_text("Stored as")).to_be_visible()


def test_a_link_shows_the_same_view_in_another_browser(console: Console) -> None:
    console.watched.allow("401")  # of what the page asks for while it loses its cookie
    console.queue("orders")
    console.kill("orders", {"order": 1}, "HTTP 500 from crm")
    console.kill("orders", {"order": 2, "kind": "parcel"}, "550 no such mailbox")
    page = console.sign_in(path="/queues/orders?tab=dead")
    page.get_by_label("Search dead letters").fill("parcel")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 2 dead letters match")).to_be_visible()
    page.get_by_role("row", name=re.compile("no such mailbox")).click()
    expect(page.get_by_role("complementary")).to_be_visible()
    path = urllib.parse.urlsplit(page.url)
    console.watched.context.clear_cookies()
    page.evaluate("localStorage.clear()")
    page = console.sign_in(path=f"{path.path}?{path.query}")
    expect(page.get_by_role("complementary").locator(".note")).to_contain_text("no such mailbox")
    expect(page.get_by_label("Search dead letters")).to_have_value("parcel")


def test_a_large_payload_does_not_block_the_page(console: Console) -> None:
    console.queue("orders")
    message = console.publish("orders", {"text": "x" * 900_000})
    page = console.sign_in(path=f"/queues/orders?id={message}")
    expect(page.get_by_text("Download shows the rest")).to_be_visible()
    assert len(page.get_by_role("complementary").locator("pre").inner_text()) < 70_000


def test_settings_show_the_difference_before_they_are_saved(console: Console) -> None:
    console.queue("orders", maxAttempts=3)
    page = console.sign_in(path="/queues/orders?tab=settings")
    page.get_by_label("max attempts").fill("7")
    page.get_by_role("button", name="Save…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('- "maxAttempts": 3'.replace("- ", "-   "))
    dialog.get_by_role("button", name="Save").last.click()
    expect(dialog).to_have_count(0)
    assert console.call("GET", "/v1/queues/orders")["settings"]["maxAttempts"] == 7
