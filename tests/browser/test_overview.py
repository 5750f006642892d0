"""The overview: the installation for a platform key, and what can be done about what needs attention."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser


def test_a_platform_key_without_a_tenant_sees_the_installation(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in(console.admin_key)
    expect(page.get_by_role("region", name="Readiness")).to_contain_text("engine")
    expect(page.get_by_role("table", name="By traffic").get_by_role("row")).not_to_have_count(1)
    expect(page.get_by_role("table", name="Processes")).to_contain_text("gateway", timeout=60_000)  # with its next sample
    tenant = page.get_by_label("Tenant")
    expect(tenant).to_have_value("")
    tenant.select_option(console.tenant)
    expect(page.get_by_role("table", name="Busiest queues")).to_contain_text("orders")
    expect(page).to_have_url(re.compile(f"tenant={console.tenant}"))
    console.open(f"/queues?tenant={console.tenant}")
    tenant.select_option(label="All tenants")
    expect(page.get_by_role("table", name="By traffic")).to_be_visible()
    page.get_by_role("link", name="Queues", exact=True).click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    expect(tenant).to_have_value("default")


def test_what_needs_attention_can_be_redriven_and_paused(console: Console) -> None:
    console.kill(console.queue("orders"), 1, "HTTP 500 from crm")
    page = console.sign_in()
    item = page.get_by_role("region", name="Needs attention").get_by_role("listitem").filter(has_text="orders")
    expect(item).to_contain_text("1 dead")
    expect(item).to_contain_text("HTTP # from crm")
    expect(item).to_contain_text("failing")
    item.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog", name="Pause orders").get_by_role("button", name="Pause the queue").click()
    expect(item).to_contain_text("paused")
    item.get_by_role("button", name="Redrive…").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1 message").click()
    expect(item).not_to_contain_text("dead")
    stats = console.call("GET", "/v1/queues/orders")
    assert stats["paused"] and stats["stats"]["ready"] == 1


def test_a_failed_check_of_the_server_needs_attention(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in()
    row = {"name": "engine", "ok": False, "detail": "no leader"}
    event = '{"at": "2026-11-18T00:00:00Z", "sections": {"queues": {"rows": {"orders": %s}}, "health": {"rows": {"engine": %s}}}}'
    [queue] = console.call("GET", "/v1/queues?stats=true")["queues"]
    live = {**queue["stats"], "name": "orders", "paused": False, "oldestAt": None, "expectedDrainSeconds": 60}
    body = f"event: snapshot\ndata: {event % (json.dumps(live), json.dumps(row))}\n\n"
    page.route("**/v1/live?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.reload()
    attention = page.get_by_role("region", name="Needs attention")
    expect(attention.get_by_role("listitem").filter(has_text="engine")).to_contain_text("not ready: no leader")
