"""The questions of an operator at night, answered by keyboard alone within a number of steps, beside demonstration traffic."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.commands import register, send
from tests.browser.console import Console
from tests.browser.keyboard import Keyboard
from tests.installation import Installation

pytestmark = pytest.mark.browser
SHOP = "demo-shop"


@pytest.fixture(scope="module", autouse=True)
def demo(installation: Installation) -> Iterator[None]:
    """`postroad demo` runs while these tests do."""
    given = {
        "POSTROAD_URL": installation.url,
        "POSTROAD_KEY": installation.credentials["admin_key"],
        "HOME": str(installation.home),
    }
    command = [sys.executable, "-m", "postroad", "demo", "--seconds", "600", "--rate", "15"]
    with subprocess.Popen(command, env={**os.environ, **given}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        yield
        running.terminate()


def at_the_shop(console: Console, path: str = "/") -> Page:
    """The demo's tenant, seen with the platform's key."""
    page = console.sign_in(console.admin_key, "/")
    expect(page.get_by_label("Tenant")).to_contain_text(SHOP, timeout=60_000)  # once the demo has created it
    return console.open(f"{path}?tenant={SHOP}")


def test_n1_to_n3_find_an_order_see_why_it_failed_and_redrive_only_those(console: Console) -> None:
    for number in range(3):
        console.queue(f"queue-{number}")
        console.publish(f"queue-{number}", {"order": 100 + number})
    console.queue("orders")
    for number in (10003, 10004, 20001):
        console.kill("orders", {"order": number, "customer": "ada" if number < 20000 else "bob"}, "HTTP 500 from crm")
    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    keyboard = Keyboard(page)
    keyboard.find("10003")
    hit = page.get_by_role("row", name=re.compile("orders.*dead"))
    expect(hit).to_contain_text("HTTP 500 from crm")
    expect(page.get_by_role("status").filter(has_text="1 hit")).to_contain_text("4 of 4 queues")
    keyboard.taken(2)

    keyboard.open_row(hit)
    drawer = page.get_by_role("complementary")
    expect(drawer.locator(".note")).to_contain_text("HTTP 500 from crm")
    expect(drawer.get_by_text("leased", exact=True)).to_be_visible()
    expect(drawer.locator("pre").first).to_contain_text("10003")
    keyboard.taken(1)

    page.keyboard.press("Escape")
    keyboard.find("field:customer=ada")
    expect(page.get_by_role("status").filter(has_text="2 hits")).to_be_visible()
    keyboard.press("r")
    keyboard.activate(page.get_by_role("dialog").get_by_role("button", name="Redrive 2 messages"))
    bar = page.get_by_role("status").filter(has_text="2 moved")
    expect(bar).to_be_visible()
    keyboard.taken(3)
    [left] = console.call("GET", "/v1/queues/orders/dlq")["messages"]
    assert left["payload"]["order"] == 20001
    [leased] = console.call("POST", "/v1/queues/orders/pull", {"maxMessages": 1, "waitMs": 5000})["messages"]
    refused = {"receiptId": leased["receiptId"], "action": "dlq", "reason": "HTTP 500 from crm"}
    console.call("POST", "/v1/queues/orders/nack", refused)
    expect(bar).to_contain_text("1 died again")
    keyboard.activate(bar.get_by_role("link", name="Those that died again"))
    expect(page.get_by_text("1 of 2 dead letters match")).to_be_visible()


def test_n4_who_causes_the_load(console: Console) -> None:
    page = at_the_shop(console)
    keyboard = Keyboard(page)
    keyboard.go("o")
    link = page.get_by_role("region", name="Traffic").get_by_role("link", name="demo: orders publisher")
    expect(link).to_be_visible(timeout=60_000)
    rate = page.get_by_role("region", name="Traffic").get_by_role("img", name=re.compile("^Rate of demo: orders publisher to"))
    expect(rate).to_be_visible()
    keyboard.activate(link)
    flows = page.get_by_role("table", name="Flows")
    expect(flows).to_contain_text("demo: orders publisher")
    expect(flows.get_by_role("row")).to_have_count(2)  # the head and its only flow
    keyboard.taken(2)


def test_n5_stop_it(console: Console) -> None:
    console.queue("orders")
    key_id, key = console.new_key("noisy", ["publish"])
    page = console.sign_in(path="/queues/orders")
    keyboard = Keyboard(page)
    keyboard.activate(page.get_by_role("button", name="Pause…"))
    keyboard.field(page.get_by_role("dialog").get_by_label("Reason, visible to everyone"), "the crm is down")
    keyboard.activate(page.get_by_role("dialog").get_by_role("button", name="Pause the queue"))
    expect(page.get_by_text("▮▮ paused")).to_be_visible()
    keyboard.taken(2)
    assert console.call("GET", "/v1/queues/orders")["paused"] is True

    console.open(f"/admin/keys?id={key_id}")
    keyboard.activate(page.get_by_role("button", name="Disable…"))
    keyboard.activate(page.get_by_role("dialog").get_by_role("button", name="Disable 1 key"))
    expect(page.get_by_role("button", name="Enable")).to_be_visible()
    keyboard.taken(2)
    assert console.status("POST", "/v1/queues/orders/messages", body={"payload": 1}, key=key) in (401, 403)
    actions = {one["action"] for one in console.call("GET", "/api/control/audit?limit=20")["entries"]}
    assert {"queue.pause", "key.change"} <= actions


def test_n6_are_the_consumers_alive(console: Console) -> None:
    """A sentence, not just `leased 1`."""
    console.queue("orders", visibilityTimeoutMs=30_000)
    console.publish("orders", {"order": 1})
    console.publish("orders", {"order": 2})
    page = console.sign_in(path="/queues")
    keyboard = Keyboard(page)
    keyboard.open_row(page.get_by_role("row", name=re.compile("^orders")))
    keyboard.activate(page.get_by_role("link", name=re.compile("^Consumers")))
    expect(page.get_by_role("status").filter(has_text="Nobody pulls")).to_contain_text("2 messages wait")
    keyboard.taken(2)
    console.call("POST", "/v1/queues/orders/pull", {"maxMessages": 1})
    expect(page.get_by_role("table", name="Consumers of orders")).to_contain_text("operator")


def test_n7_what_changed_before_it_began(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in(path="/queues")
    console.call("POST", "/v1/queues/orders/pause", {"reason": "deployment"})
    keyboard = Keyboard(page)
    keyboard.go("o")
    expect(page.get_by_role("region", name="What changed")).to_contain_text("queue.pause")
    actions = {one["action"] for one in console.call("GET", "/api/control/audit")["entries"]}
    assert "console.sign_in" in actions
    expect(page.get_by_role("region", name="What changed")).not_to_contain_text("console.")
    expect(page.get_by_role("region", name="Depth").get_by_role("img", name=re.compile("^Depth of all queues"))).to_be_visible()
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("paused: deployment")
    keyboard.taken(1)


def test_n8_why_does_this_endpoint_get_nothing(console: Console) -> None:
    page = at_the_shop(console, "/topics")
    keyboard = Keyboard(page)
    keyboard.open_row(page.get_by_role("row", name=re.compile("order-events")))
    keyboard.activate(page.get_by_role("link", name="Subscriptions", exact=True).last)
    keyboard.open_row(page.get_by_role("row", name=re.compile("newsletter")))
    expect(page.get_by_role("heading", name="newsletter")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile("[Pp]aused"))).to_be_visible()
    expect(page.get_by_role("button", name="Test delivery…")).to_be_visible()
    keyboard.taken(3)


def test_n9_what_happened_to_this_command(console: Console) -> None:
    secret, command = register(console), str(uuid.uuid4())
    assert send(console, secret, name="none", command_id=command) == 404
    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    keyboard = Keyboard(page)
    keyboard.find(command)
    keyboard.activate(page.get_by_role("link", name=command))
    expect(page.get_by_role("row", name=re.compile(f"failed.*route-missing.*{command}"))).to_be_visible()
    keyboard.taken(2)

    keyboard.activate(page.get_by_role("button", name="Replay these…"))
    dialog = page.get_by_role("dialog", name="New replay")
    keyboard.field(dialog.get_by_label(re.compile("^reason")).first, "the route exists now")
    keyboard.activate(dialog.get_by_role("button", name="Dry run"))
    expect(dialog.get_by_role("status")).to_have_text("The pipeline selects the commands…")
    keyboard.taken(3)
    [replay] = console.call("GET", "/v1/replays")["replays"]
    assert (replay["selection"]["ids"], replay["dryRun"]) == ([command], True)


def test_n10_who_is_banned_and_why(console: Console) -> None:
    ban = {"source": "shop", "kind": "hard", "reason": "62 % of the route in 60 s, over 50 %", "duration_seconds": 600}
    console.call("POST", "/v1/bans", ban, key=console.admin_key, tenant=console.tenant)
    page = console.sign_in(console.admin_key, f"/?tenant={console.tenant}")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    keyboard = Keyboard(page)
    keyboard.go("c")
    keyboard.activate(page.get_by_role("link", name="Bans", exact=True))
    row = page.get_by_role("row", name=re.compile("62 % of the route"))
    expect(row).to_be_visible()
    keyboard.activate(row.get_by_role("button", name="Lift…"))
    keyboard.taken(3)
    dialog = page.get_by_role("dialog")
    keyboard.field(dialog.get_by_label("Why it is lifted, for the audit log"), "agreed with the shop")
    keyboard.activate(dialog.get_by_role("button", name="Lift 1 ban"))
    expect(page.get_by_text("No source is banned")).to_be_visible()
    path = "/api/control/audit?action=registry.ban.delete"
    [entry] = console.call("GET", path, key=console.admin_key, tenant=console.tenant)["entries"]
    assert entry["after"] == {"reason": "agreed with the shop"}


def test_n11_what_triggered_this_alert(console: Console) -> None:
    """A critical alert appears without a reload, and its rule cannot be turned off."""
    register(console)
    page = console.sign_in()
    expect(page.get_by_role("status").filter(has_text="● live")).to_be_visible()
    assert send(console, "not the secret", name="post") == 400
    keyboard = Keyboard(page)
    bell = page.get_by_role("link", name="▲ 1 alert")
    expect(bell).to_be_visible(timeout=30_000)
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    keyboard.activate(bell)
    keyboard.open_row(page.get_by_role("row", name=re.compile("command-invalid")))
    drawer = page.get_by_role("complementary")
    expect(drawer).to_contain_text("snavio.command.invalid")
    expect(drawer.locator("pre").first).to_contain_text('"source"')
    keyboard.activate(drawer.get_by_role("button", name="Acknowledge"))
    expect(drawer).to_contain_text("acknowledged")
    expect(page.get_by_role("link", name="✔ no alerts")).to_be_visible()
    keyboard.taken(3)
    console.watched.allow("4\\d\\d")
    console.open("/alerts?tab=rules&id=command-invalid")
    page.get_by_role("button", name="Turn off").press("Enter")
    expect(page.get_by_role("complementary").get_by_role("alert")).to_be_visible()
    rules = console.call("GET", "/v1/alert-rules")["rules"]
    assert next(one for one in rules if one["name"] == "command-invalid")["enabled"]


def test_n12_what_was_this_key_before(console: Console) -> None:
    console.call("POST", "/v1/buckets", {"name": "config", "history": 5})
    for limit in (10, 20):
        console.call("PUT", "/v1/buckets/config/keys/limits", {"limit": limit})
    page = console.sign_in(path="/buckets")
    keyboard = Keyboard(page)
    keyboard.open_row(page.get_by_role("row", name=re.compile("config")))
    keyboard.open_row(page.get_by_role("row", name=re.compile("limits")))
    difference = page.get_by_label("Difference")
    expect(difference).to_contain_text('-   "limit": 10')
    expect(difference).to_contain_text('+   "limit": 20')
    keyboard.taken(3)


def test_n13_which_node_is_down(console: Console) -> None:
    """The answer is that of the server, with its node marked as down: this installation has no other that could stop."""

    def stop_the_node(route: Route) -> None:
        answer = route.fetch()
        overview = answer.json()
        for region in overview["regions"]:
            region["nodes"] = [{**node, "isUp": False} for node in region["nodes"]]
        route.fulfill(response=answer, json=overview)

    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.route("**/v1/regions*", stop_the_node)
    keyboard = Keyboard(page)
    keyboard.go("m")
    expect(page.get_by_role("status").filter(has_text="1 node down")).to_contain_text("has a leader")
    keyboard.taken(1)
