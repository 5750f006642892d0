"""Play, the load test and the flow map."""

import re

import pytest
from playwright.sync_api import Response, expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser
OPEN = """(url) => new Promise((done) => {
  const socket = new WebSocket(url, ['postroad.v1'])
  socket.onopen = () => done('open')
  socket.onerror = () => done('refused')
})"""


def test_a_broken_connection_resumes_without_a_gap_and_its_token_is_used_up(console: Console) -> None:
    console.watched.allow("WebSocket|401|403")
    page = console.sign_in(path="/play")
    tokens: list[Response] = []
    page.on("response", lambda response: tokens.append(response) if response.url.endswith("/v1/tokens") else None)
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(page.get_by_role("status").filter(has_text=re.compile("^connected$"))).to_be_visible()
    page.get_by_role("button", name="Publish", exact=True).click()
    tail = page.locator(".panel", has=page.get_by_role("heading", name="Live tail"))
    expect(tail.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name="Break the connection").click()
    expect(tail.get_by_role("listitem")).to_have_count(4)
    sequences = [int(one.inner_text().split()[0]) for one in tail.get_by_role("listitem").all()]
    assert sequences == [4, 3, 2, 1]
    log = page.locator(".panel", has=page.get_by_role("heading", name="Connection"))
    expect(log).to_contain_text("the connection is broken at sequence 1")
    expect(log).not_to_contain_text("✖")
    used = tokens[0].json()["token"]
    fresh = console.call("POST", "/v1/tokens", {"resource": "live", "grants": [{"topic": "play"}], "once": True})["token"]
    url = f"{console.url.replace('http', 'ws')}/v1/ws?bearer="
    assert [page.evaluate(OPEN, url + token) for token in (fresh, used, fresh)] == ["open", "refused", "refused"]


def test_a_load_test_starts_stops_and_keeps_to_its_limits(console: Console) -> None:
    page = console.sign_in(path="/loadtest")
    seconds = page.get_by_label("Seconds")
    expect(page.get_by_text("At most")).to_be_visible()
    limits = console.call("GET", "/v1/loadtests/limits")
    seconds.fill(str(limits["seconds"] + 1))
    page.get_by_role("button", name="Start").click()
    assert page.evaluate("!document.querySelector('form[aria-label=\"New load test\"]').checkValidity()")
    assert console.call("GET", "/v1/loadtests")["loadtests"] == []
    assert console.status("POST", "/v1/loadtests", body={"seconds": limits["seconds"] + 1}) == 422
    seconds.fill("60")
    page.get_by_label("Messages per second").fill("20")
    page.get_by_role("button", name="Start").click()
    run = page.get_by_role("region", name="Run", exact=True)
    expect(run.get_by_role("status")).to_contain_text("running")
    expect(run.locator(".numbers")).to_contain_text(re.compile("[1-9][0-9]* published[^/]"))
    page.get_by_role("button", name="Stop").click()
    expect(run.get_by_role("status")).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Start")).to_be_enabled()


def test_the_flow_map_shows_a_redrive(console: Console) -> None:
    console.queue("orders")
    for number in range(60):
        console.kill("orders", {"number": number}, "HTTP 500 from crm")
    page = console.sign_in(path="/topology")
    expect(page.get_by_role("button", name=re.compile("orders"))).to_be_visible()
    console.call("POST", "/v1/queues/orders/dlq/redrive", {"ratePerSecond": 5})
    expect(page.locator("path[data-kind=redrive]")).to_have_count(1)
    expect(page.get_by_role("row", name=re.compile("^dead letters of orders queue"))).to_be_visible()
