"""A link shows the same view, also if what it names is not on the first page of a list; and links lead to what they say."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.commands import register, send
from tests.browser.console import Console

pytestmark = pytest.mark.browser


def test_a_link_opens_what_is_not_on_the_first_page(console: Console) -> None:
    for number in range(105):
        console.new_key(f"k{number}", ["read"])
    keys = console.call("GET", "/api/control/keys?limit=1000")["keys"]
    page = console.sign_in(path=f"/admin/keys?id={keys[-1]['id']}")
    expect(page.get_by_role("complementary", name=keys[-1]["name"])).to_be_visible()
    console.open("/admin/keys?id=of-nobody")
    expect(page.get_by_text("it no longer exists, or another filter hides it")).to_be_visible()
    oldest = console.call("GET", "/api/control/audit?action=key.create&limit=1000")["entries"][-1]
    console.open(f"/admin/audit?id={oldest['id']}")
    expect(page.get_by_role("complementary", name=oldest["action"])).to_be_visible()


def test_a_link_opens_a_message_of_a_topic_wherever_it_is(console: Console) -> None:
    console.call("PUT", "/v1/topics/news", {})
    for number in range(60):
        console.call("POST", "/v1/topics/news/messages", {"subject": "a.b", "payload": number})
    page = console.sign_in(path="/topics/news?tab=messages&id=57")
    expect(page.get_by_role("complementary", name="a.b · 57")).to_be_visible()
    console.open("/topics/news?tab=messages&id=999")
    expect(page.get_by_text("The topic no longer has the message 999.")).to_be_visible()


def test_a_link_opens_a_command_that_the_filter_hides(console: Console) -> None:
    secret = register(console)
    assert send(console, secret, name="none", payload=b'{"order": 10003}') == 404
    page = console.sign_in(path="/commands?tab=search")
    page.get_by_role("row", name=re.compile("route-missing")).click()
    expect(page.get_by_role("complementary")).to_contain_text("10003")
    page.goto(f"{page.url}&source=nobody%2Fat-all")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    expect(page.get_by_role("complementary")).to_contain_text("10003")


def test_an_alert_leads_to_the_events_that_raised_it(console: Console) -> None:
    rule = {"events": "bucket.changed", "severity": "warning", "channels": ["dashboard"]}
    console.call("PUT", "/v1/alert-rules/buckets", rule)
    page = console.sign_in()
    console.call("POST", "/v1/buckets", {"name": "config"})
    page.get_by_role("link", name="▲ 1 alert").click(timeout=60_000)
    page.get_by_role("row", name=re.compile("buckets")).click()
    page.get_by_role("complementary").get_by_role("link", name="Live events").click()
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    expect(page.get_by_label("Event types")).to_have_value("bucket.changed")


def test_a_tail_with_another_filter_starts_anew(console: Console) -> None:
    console.call("PUT", "/v1/topics/news", {})
    page = console.sign_in(path="/topics/news?tab=tail")
    messages = page.get_by_role("table", name="Live messages")
    expect(page.get_by_role("main").get_by_text("● live")).to_be_visible()
    console.call("POST", "/v1/topics/news/messages", {"subject": "a.one", "payload": 1})
    expect(messages.get_by_role("cell", name="a.one")).to_be_visible()
    page.get_by_label("Subject pattern").fill("b.*")
    page.keyboard.press("Enter")
    expect(messages).to_have_count(0)
    expect(page.get_by_text("New messages appear here.")).to_be_visible()
