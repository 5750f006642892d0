"""What the console writes: values of buckets and messages that are published again keep their type."""

import base64
import urllib.request

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser


def put(console: Console, key: str, body: bytes, media: str) -> None:
    headers = {"Authorization": f"Bearer {console.key}", "Content-Type": media}
    urllib.request.urlopen(
        urllib.request.Request(f"{console.url}/v1/buckets/config/keys/{key}", body, headers, method="PUT"), timeout=20
    )


def stored(console: Console, key: str) -> tuple[str, bytes]:
    request = urllib.request.Request(
        f"{console.url}/v1/buckets/config/keys/{key}", headers={"Authorization": f"Bearer {console.key}"}
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.headers["Content-Type"].partition(";")[0], response.read()


def change(console: Console, key: str, shown: str, text: str) -> None:
    page = console.open(f"/buckets/config?key={key}")
    page.get_by_role("complementary", name=key).get_by_role("button", name="Change…").click()
    dialog = page.get_by_role("dialog", name=f"Change {key}")
    expect(dialog.get_by_label("Value")).to_have_value(shown)
    dialog.get_by_label("Value").fill(text)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)


def test_a_changed_value_keeps_its_type(console: Console) -> None:
    console.call("POST", "/v1/buckets", {"name": "config"})
    put(console, "greeting", b'"hello"', "application/json")
    put(console, "motto", b"more haste", "text/plain")
    put(console, "logo", b"\x89PNG\x00", "image/png")
    page = console.sign_in(path="/buckets/config")
    change(console, "greeting", '"hello"', '"good bye"')
    assert stored(console, "greeting") == ("application/json", b'"good bye"')
    change(console, "motto", "more haste", "less speed")
    assert stored(console, "motto") == ("text/plain", b"less speed")
    console.open("/buckets/config?key=logo")
    expect(page.get_by_role("complementary").locator("pre").first).to_have_text(base64.b64encode(b"\x89PNG\x00").decode())
    expect(page.get_by_role("button", name="Change… (the value is binary")).to_be_disabled()


def again(console: Console) -> Locator:
    return console.page.get_by_role("complementary").get_by_role("button", name="Publish again…")


def test_a_message_is_published_again_as_it_was(console: Console) -> None:
    console.queue("orders")
    fields = {"headers": {"shop": "north"}, "priority": "high", "groupId": "g-1", "correlationId": "c-1"}
    first = console.publish("orders", "123", **fields)
    page = console.sign_in(path=f"/queues/orders?id={first}")
    again(console).click()
    dialog = page.get_by_role("dialog", name="Publish to orders")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    expect(dialog.get_by_role("status").filter(has_text="Stored as")).to_be_visible()
    messages = console.call("GET", "/v1/queues/orders/messages")["messages"]
    assert [one["payload"] for one in messages] == ["123", "123"]
    assert all({name: one[name] for name in fields} == fields for one in messages)


def test_a_message_is_not_published_again_before_it_is_loaded(console: Console) -> None:
    console.queue("orders")
    message = console.publish("orders", {"text": "x" * 2000})
    page = console.sign_in(path="/queues/orders")
    page.route(f"**/v1/queues/orders/messages/{message}", lambda _route: None)
    page.get_by_role("row", name="xxx").click()
    expect(page.get_by_role("button", name="Publish again… (the whole message is not loaded)")).to_be_disabled()
