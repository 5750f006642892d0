"""Signing in and out, and what a key's scopes show."""

import pytest
from playwright.sync_api import expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser


def link(console: Console) -> str:
    return str(console.call("POST", "/v1/session/links", {})["url"])


def test_a_link_signs_in_once_and_leaves_no_trace_in_the_url(console: Console) -> None:
    url = link(console)
    console.page.goto(url)
    expect(console.page.get_by_role("heading", name="Overview")).to_be_visible()
    assert "access" not in console.page.url
    console.watched.allow("401")
    console.watched.context.clear_cookies()
    console.page.goto(url)
    expect(console.page.get_by_role("alert")).to_contain_text("invalid, has expired or was used")


def test_a_wrong_key_is_refused_in_words_and_sets_no_cookie(console: Console) -> None:
    console.watched.allow("401")
    page = console.open("/queues")
    page.get_by_label("API key").fill("pr_wrong_key_of_a_test_0123456789")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the key is invalid")
    assert console.watched.context.cookies() == []
    page.get_by_label("API key").fill(console.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_the_cookie_is_not_readable_and_no_key_is_stored(console: Console) -> None:
    page = console.sign_in()
    [cookie] = [one for one in console.watched.context.cookies() if one["name"] == "postroad_session"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    stored = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])")
    assert console.key not in stored and "postroad_session" not in stored


def test_actions_that_a_key_may_not_do_are_disabled_with_the_reason(console: Console) -> None:
    console.queue("orders")
    _, key = console.new_key("publisher", ["publish", "read"])
    page = console.sign_in(key, "/queues/orders")
    expect(page.get_by_role("button", name="Publish…")).to_be_enabled()
    purge = page.get_by_role("button", name="Purge…")
    expect(purge).to_be_disabled()
    expect(purge).to_have_attribute("title", "needs the scope `write` or `admin`")
    expect(page.get_by_role("link", name="Keys")).to_have_count(0)


def test_a_tab_of_a_disabled_key_is_signed_out(console: Console) -> None:
    console.watched.allow("401|403")
    key_id, key = console.new_key("short", ["read"])
    page = console.sign_in(key)
    console.call("PATCH", f"/api/control/keys/{key_id}", {"enabled": False})
    expect(page.get_by_role("alert")).to_contain_text("The session has ended")
    expect(page.get_by_label("API key")).to_be_visible()


def test_signing_out_ends_the_session(console: Console) -> None:
    page = console.sign_in()
    page.get_by_text("operator ▾").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert not [one for one in console.watched.context.cookies() if one["name"] == "postroad_session"]
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_new_key_is_shown_once(console: Console) -> None:
    page = console.sign_in(path="/admin/keys")
    page.get_by_role("button", name="New key…").click()
    dialog = page.get_by_role("dialog", name="New key")
    dialog.get_by_label("name *").fill("shown-once")
    console.watched.allow("403")
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_label("API key").fill(console.key)
    dialog.get_by_role("button", name="Create").click()
    secret = page.get_by_role("dialog", name="The key").locator("code")
    expect(secret).to_be_visible()
    text = secret.inner_text()
    assert console.call("GET", "/v1/whoami", key=text)["keyName"] == "shown-once"
    page.get_by_role("dialog", name="The key").get_by_role("button", name="Close").last.click()
    expect(page.get_by_role("cell", name="shown-once")).to_be_visible()
    assert text not in page.content()
    page.reload()
    expect(page.get_by_role("cell", name="shown-once")).to_be_visible()
    assert text not in page.content()
    assert text not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
