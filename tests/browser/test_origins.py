"""The browser's limits: what a hidden tab holds, and what a page of another origin can do."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser
TABS = 8  # a browser has six connections to an origin
HIDE = """(isHidden) => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden })
  document.dispatchEvent(new Event('visibilitychange'))
}"""


def hide(page: Page, is_hidden: bool = True) -> None:
    """As the browser does when another tab comes to the front; without a window it does not."""
    page.evaluate(HIDE, is_hidden)


def test_a_hidden_tab_holds_no_stream_and_eight_tabs_load(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in(path="/queues")
    for number in range(TABS):
        expect(page.get_by_role("status").filter(has_text="● live")).to_be_visible()
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        if number < TABS - 1:
            hide(page)
            expect(page.get_by_role("status").filter(has_text="▪ paused")).to_be_visible()
            page = console.watched.context.new_page()
            page.goto(f"{console.url}/queues")
    first = console.page
    hide(page)
    hide(first, is_hidden=False)
    expect(first.get_by_role("status").filter(has_text="● live")).to_be_visible()
    console.publish("orders", {"number": 1})
    expect(first.get_by_role("row", name="orders")).to_contain_text("1")


@pytest.fixture
def other_origin(console: Console) -> Iterator[str]:
    """A page of another site that sends a form to the console's origin at once."""
    text = f"""<!doctype html><form method="post" action="{console.url}/v1/queues/orders/pause" enctype="text/plain">
<input name='{{"reason":"' value='forged"}}'></form><script>document.forms[0].submit()</script>"""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_form_of_another_origin_cannot_act(console: Console, other_origin: str, host: str) -> None:
    """`127.0.0.1` with another port is the same site: the browser sends the cookie, and the server refuses it."""
    console.watched.allow("left the origin|40[134]")
    console.queue("orders")
    page = console.sign_in(path="/queues/orders")
    with page.expect_response(lambda response: response.url.endswith("/v1/queues/orders/pause")) as refused:
        page.goto(f"http://{host}:{other_origin}/")
    assert refused.value.status in (401, 403)
    assert console.call("GET", "/v1/queues/orders")["paused"] is False
    console.open("/queues/orders")
    expect(page.get_by_role("button", name="Pause…")).to_be_enabled()  # the session itself is still valid
