"""What the page shows while the connection, the server or the key has no live data, and that rows stay where they are."""

import json
import os
import re
import signal

import pytest
from playwright.sync_api import Route, expect

from tests.browser.console import Console
from tests.installation import Installation

pytestmark = pytest.mark.browser
SILENT = """(() => {
  const real = window.fetch
  const first = 'event: snapshot\\ndata: {"at":"2026-01-01T00:00:00Z","sections":{"queues":{"rows":{}}}}\\n\\n'
  const silent = () => new Response(new ReadableStream({ start: (one) => one.enqueue(new TextEncoder().encode(first)) }))
  window.fetch = (input, init) => String(input).startsWith('/v1/live') ? Promise.resolve(silent()) : real(input, init)
})()"""

# The page may be live again before anybody looks. `wait_for_function` polls with `eval`, which the policy of the page forbids.
RECORD = """() => {
  window.isStale = new Promise((resolve) => {
    const header = document.querySelector('header')
    const check = () => /reconnecting, stale since \\d\\d:/.test(header.textContent) && resolve(true)
    new MutationObserver(check).observe(header, { subtree: true, childList: true, characterData: true })
  })
}"""


@pytest.mark.timeout(300)
def test_the_page_reconnects_after_the_gateways_died(console: Console, installation: Installation) -> None:
    """Workers are Python processes: on a busy machine it takes them a minute to start again."""
    console.watched.allow("Failed to load resource|ERR_")
    console.queue("orders")
    page = console.sign_in()
    expect(page.get_by_role("status").filter(has_text="● live")).to_be_visible()
    page.evaluate(RECORD)
    for pid in installation.worker_pids:
        os.kill(pid, signal.SIGKILL)
    page.evaluate("window.isStale")
    expect(page.get_by_role("status").filter(has_text="● live")).to_be_visible(timeout=120_000)


def test_a_connection_that_is_silent_looks_stale(console: Console) -> None:
    """A server that hangs closes nothing: without a heartbeat the connection is given up."""
    console.page.add_init_script(SILENT)
    console.page.clock.install()
    page = console.sign_in()
    expect(page.get_by_role("status").filter(has_text="● live")).to_be_visible()
    page.clock.pause_at(page.evaluate("Date.now()") + 46_000)
    page.clock.run_for(100)
    expect(page.get_by_role("status").filter(has_text="reconnecting, stale since")).to_be_visible()


def test_an_outage_does_not_sign_out(console: Console) -> None:
    """A reload while the server is not ready waits for it, and does not ask for a key."""
    console.watched.allow("503")
    page = console.sign_in(path="/queues")
    problem = {"type": "", "title": "Registry stale", "status": 503, "code": "registry-stale", "retryable": True}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/v1/session", refuse)
    page.reload()
    expect(page.get_by_role("heading", name="Postroad does not answer")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Registry stale")).to_be_visible()
    expect(page.get_by_label("API key")).to_have_count(0)
    page.unroute("**/v1/session")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_a_page_whose_script_cannot_be_loaded_can_be_reloaded(console: Console) -> None:
    """After an update the files of the former build are gone; during an outage none is served."""
    console.watched.allow("ERR_FAILED")
    page = console.sign_in()
    page.route("**/assets/Queues-*.js", lambda route: route.abort())
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
    expect(page.get_by_role("heading", name="This page could not be loaded")).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_a_key_without_read_is_told_so(console: Console) -> None:
    console.watched.allow("403")
    _, key = console.new_key("publisher", ["publish"])
    page = console.sign_in(key)
    expect(page.get_by_text("This key may not see queues")).to_contain_text("'read'")
    expect(page.get_by_role("status").filter(has_text="no live data")).to_be_visible()
    navigation = page.get_by_role("navigation", name="Pages")
    expect(navigation.get_by_role("link", name="Play", exact=True)).to_be_visible()
    expect(navigation.get_by_role("link", name="Keys")).to_have_count(0)
    console.open("/queues")
    expect(page.get_by_role("alert")).to_contain_text("'read'")
    expect(page.get_by_role("button", name="New queue…")).to_be_disabled()


def test_rows_stay_where_they_are_while_numbers_change(console: Console) -> None:
    for name in ("a", "b", "c"):
        console.queue(name)
    page = console.sign_in()
    rows = page.get_by_role("table", name="Busiest queues").get_by_role("row")
    expect(rows).to_have_count(4)
    for number in range(5):
        console.publish("c", {"number": number})
    expect(rows.nth(3)).to_contain_text(re.compile("^ ?c ?5"))
    expect(rows.nth(1)).to_contain_text(re.compile("^ ?a ?0"))
