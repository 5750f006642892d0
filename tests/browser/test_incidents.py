"""The questions of an operator at night, each answered with the keyboard in few steps."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser


def test_where_is_this_order(console: Console) -> None:
    """Find a message by text over all queues; then see why it failed."""
    for number in range(3):
        console.queue(f"queue-{number}")
        console.publish(f"queue-{number}", {"order": 100 + number})
    console.queue("orders")
    console.kill("orders", {"order": 10003}, "HTTP 500 from crm")
    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("10003")
    page.keyboard.press("Enter")
    hit = page.get_by_role("row", name=re.compile("orders.*dead"))
    expect(hit).to_contain_text("HTTP 500 from crm")
    expect(page.get_by_role("status").filter(has_text="1 hit")).to_contain_text("4 of 4 queues")
    hit.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary").locator(".note")).to_contain_text("HTTP 500 from crm")


def test_who_causes_the_load_and_stop_it(console: Console) -> None:
    """The overview names the key; disabling it takes effect at once."""
    console.queue("orders")
    key_id, key = console.new_key("noisy", ["publish"])
    page = console.sign_in()
    body = {"messages": [{"payload": number} for number in range(200)]}
    console.call("POST", "/v1/queues/orders/messages/batch", body, key=key)
    traffic = page.get_by_role("region", name="Traffic")
    expect(traffic.get_by_role("link", name="noisy")).to_be_visible(timeout=20_000)
    page.goto(f"{console.url}/admin/keys?id={key_id}")
    page.get_by_role("button", name="Disable…").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Disable 1 key").press("Enter")
    expect(page.get_by_role("button", name="Enable")).to_be_visible()
    assert console.status("POST", "/v1/queues/orders/messages", body={"payload": 1}, key=key) in (401, 403)


def test_are_the_consumers_alive(console: Console) -> None:
    """A sentence, not just `leased 1`."""
    console.queue("orders", visibilityTimeoutMs=30_000)
    console.publish("orders", {"order": 1})
    console.publish("orders", {"order": 2})
    page = console.sign_in(path="/queues/orders?tab=consumers")
    expect(page.get_by_role("status").filter(has_text="Nobody pulls")).to_contain_text("2 messages wait")
    console.call("POST", "/v1/queues/orders/pull", {"maxMessages": 1})
    expect(page.get_by_role("table", name="Consumers of orders")).to_contain_text("operator")


def test_what_changed_before_it_began(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in()
    console.call("POST", "/v1/queues/orders/pause", {"reason": "deployment"})
    changes = page.get_by_role("region", name="What changed")
    expect(changes).to_contain_text("queue.pause", timeout=20_000)
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("paused: deployment", timeout=20_000)


def test_why_does_this_endpoint_get_nothing(console: Console) -> None:
    console.call("PUT", "/v1/topics/news", {})
    console.queue("inbox")
    body = {"delivery_type": "queue", "queue": "inbox", "name": "to-inbox", "filter": ["orders.>"]}
    subscription = console.call("POST", "/v1/topics/news/subscriptions", body)["id"]
    console.call("POST", f"/v1/subscriptions/{subscription}/pause")
    page = console.sign_in(path="/topics/news?tab=subscriptions")
    page.get_by_role("link", name="to-inbox").press("Enter")
    expect(page.get_by_role("status").filter(has_text=re.compile("[Pp]aused"))).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).press("Enter")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_which_node_is_down(console: Console) -> None:
    page = console.sign_in(path="/topology?tab=regions")
    expect(page.get_by_role("status").filter(has_text="leader")).to_be_visible()


def test_commands_can_be_banned_and_the_ban_is_lifted(console: Console) -> None:
    ban = {"source": "shop", "kind": "hard", "reason": "floods the route", "duration_seconds": 600}
    console.call("POST", "/v1/bans", ban, key=console.admin_key, tenant=console.tenant)
    page = console.sign_in(console.admin_key, f"/commands?tab=bans&tenant={console.tenant}")
    expect(page.get_by_role("row", name=re.compile("floods the route"))).to_be_visible()
    page.get_by_role("button", name="Lift…").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Lift 1 ban").press("Enter")
    expect(page.get_by_text("No source is banned")).to_be_visible()
