"""Actions that fail say so, those that destroy ask before, and those that a key may not do are disabled."""

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.commands import register
from tests.browser.console import Console

pytestmark = pytest.mark.browser

UNAVAILABLE = {
    "type": "",
    "title": "Engine unavailable",
    "status": 503,
    "code": "engine-unavailable",
    "detail": "no leader",
    "retryable": True,
}


def refuse(page: Page, url: str, method: str) -> None:
    """Requests of this method are answered with 503."""

    def answer(route: Route) -> None:
        if route.request.method == method:
            route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(UNAVAILABLE))
        else:
            route.fallback()

    page.route(url, answer)


def test_a_grant_is_revoked_after_a_question_and_a_failure_is_shown(console: Console) -> None:
    console.watched.allow("503")
    register(console)
    source = f"{console.tenant}/billing"
    page = console.sign_in(path="/commands?tab=grants")
    refuse(page, "**/v1/grants/**", "DELETE")
    page.get_by_role("row", name=source).get_by_role("button", name="Revoke…").click()
    dialog = page.get_by_role("dialog", name=f"Revoke the grant of {source}")
    dialog.get_by_role("button", name="Revoke 1 grant").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no leader")
    page.unroute_all()
    dialog.get_by_role("button", name="Revoke 1 grant").click()
    expect(page.get_by_text("No grant: no source may send these commands.")).to_be_visible()
    assert console.call("GET", "/v1/grants")["grants"] == []


def test_a_quota_is_deleted_after_a_question(console: Console) -> None:
    register(console)
    quota = {"max": 5, "interval_seconds": 1}
    console.call("PUT", "/v1/quotas/bot/post/billing", quota)
    page = console.sign_in(path="/commands?tab=quotas")
    page.get_by_role("button", name="Delete…").click()
    assert len(console.call("GET", "/v1/quotas")["quotas"]) == 1
    page.get_by_role("dialog").get_by_role("button", name="Delete 1 quota").click()
    expect(page.get_by_text("No sender has a quota of its own.")).to_be_visible()


def test_a_button_whose_action_fails_shows_why(console: Console) -> None:
    console.watched.allow("503")
    console.queue("orders")
    console.call("PUT", "/v1/schedules/nightly", {"queue": "orders", "everyMs": 3_600_000, "payload": 1})
    page = console.sign_in(path="/schedules?id=nightly")
    refuse(page, "**/v1/schedules/nightly/run", "POST")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("dialog", name="This did not work")).to_contain_text("no leader")


def test_dead_letters_are_not_dropped_before_they_are_counted(console: Console) -> None:
    console.watched.allow("503")
    console.kill(console.queue("orders"), 1, "refused")
    page = console.sign_in(path="/queues/orders?tab=dead&error=refused")
    refuse(page, "**/v1/queues/orders/dlq/purge", "POST")
    page.get_by_role("button", name="Drop…").click()
    dialog = page.get_by_role("dialog", name="Drop dead letters of orders")
    expect(dialog.get_by_role("alert")).to_contain_text("no leader")
    expect(dialog.get_by_role("button", name="Drop")).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    page.unroute_all()
    page.get_by_role("button", name="Drop…").click()
    dialog.get_by_role("button", name="Drop 1 message").click()
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    assert console.call("GET", "/v1/queues/orders")["stats"]["dead"] == 0


def test_a_tenant_is_disabled_after_a_question(console: Console) -> None:
    page = console.sign_in(console.admin_key, "/admin/tenants")
    row = page.get_by_role("row", name=console.tenant)
    row.get_by_role("button", name="Disable…").click()
    page.get_by_role("dialog", name=f"Disable {console.tenant}").get_by_role("button", name="Disable 1 tenant").click()
    expect(row).to_contain_text("disabled")
    row.get_by_role("button", name="Enable").click()
    expect(row).to_contain_text("ready")


def test_a_typed_key_is_used_for_its_request_only(console: Console) -> None:
    console.watched.allow("40[13]")
    page = console.sign_in(path="/admin/keys")
    page.get_by_role("button", name="New key…").click()
    dialog = page.get_by_role("dialog", name="New key")
    dialog.get_by_label("name *").fill("another")
    dialog.get_by_role("button", name="Create").click()
    with page.expect_request(lambda request: request.method == "POST" and "authorization" in request.headers) as sent:
        dialog.get_by_label("API key").fill("not-a-key")
        dialog.get_by_role("button", name="Create").click()
    assert sent.value.url.endswith("/api/control/keys")
    expect(dialog.get_by_role("alert")).to_contain_text("401")
    dialog.get_by_label("API key").fill(console.key)
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog", name="The key").locator("code")).to_be_visible()


def test_keys_that_may_do_everything_are_marked(console: Console) -> None:
    narrow = {"name": "narrow", "scopes": ["admin"], "allowedQueues": ["mine-*"]}
    console.call("POST", "/api/control/keys", narrow, key=console.admin_key, tenant=console.tenant)
    page = console.sign_in(path=f"/admin/keys?id={console.key_id}")
    expect(page.get_by_role("row", name=re.compile("operator"))).to_contain_text("wide")
    expect(page.get_by_role("row", name=re.compile("narrow"))).not_to_contain_text("wide")
    expect(page.get_by_role("complementary", name="operator")).not_to_contain_text("Queues that match now")


def test_a_form_whose_fields_cannot_be_loaded_says_so_and_tries_again(console: Console) -> None:
    console.watched.allow("503")
    console.queue("orders")
    refuse(console.page, "**/openapi.json", "GET")
    page = console.sign_in(path="/queues/orders?tab=settings")
    expect(page.get_by_role("alert")).to_contain_text("no leader")
    page.unroute_all()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_label("max attempts")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    refuse(page, "**/openapi.json", "GET")
    page.goto(f"{console.url}/api-explorer")
    expect(page.get_by_role("alert")).to_contain_text("no leader")


def test_forms_that_a_key_may_not_send_are_disabled_with_the_reason(console: Console) -> None:
    _, reader = console.new_key("reader", ["read"])
    page = console.sign_in(reader, "/loadtest")
    expect(page.get_by_role("button", name="Start (needs the scope `admin`)")).to_be_disabled()
