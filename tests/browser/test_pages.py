"""Every page: accessible in both colour schemes and at both widths, without an error."""

import json
import re

import pytest
from playwright.sync_api import Browser, Route, expect

from postroad.verification.checks import checks
from tests.architecture.source import ROOT
from tests.browser.commands import register
from tests.browser.console import Console, Watched
from tests.installation import Installation

pytestmark = pytest.mark.browser

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = sorted(re.findall(r"\{ path: '(/[a-z/-]*)'", (ROOT / "console" / "src" / "routes.ts").read_text()))
MORE = [
    "/queues/orders",
    "/queues/orders?tab=dead",
    "/queues/orders?tab=consumers",
    "/queues/orders?tab=jobs",
    "/queues/orders?tab=settings",
    "/topics/news",
    "/topics/news?tab=tail",
    "/topics/news?tab=subscriptions",
    "/buckets/config?key=colour",
    "/streams/log",
    "/topics/news?tab=settings",
    "/commands?tab=services",
    "/commands?tab=quotas",
    "/commands?tab=misroutes",
    "/commands?tab=search",
    "/alerts?tab=channels",
    "/alerts?tab=rules",
    "/topology?tab=installation",
    "/topology?tab=regions",
    "/insights?tab=latency",
    "/insights?tab=pipeline",
    "/search?text=order",
    "/commands?tab=grants",
    "/commands?tab=bans",
    "/commands?tab=changes",
    "/admin/manifests?id=shop",
    "/admin/no-such-page",
    "/docs",
    "/docs/errors",
]


@pytest.mark.timeout(400)  # all pages, on a machine that may be busy with other tests
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 320), ("dark", 1400), ("light", 320)])
def test_pages_are_accessible(browser: Browser, installation: Installation, scheme: str, width: int) -> None:
    options = {
        "color_scheme": scheme,
        "viewport": {"width": width, "height": 900},
        "reduced_motion": "reduce",
    }
    with Watched(browser, installation.url, **options) as watched:
        watched.allow("40[134]")
        console = Console(watched, installation)
        of_ids = prepare(console)
        watched.context.add_init_script(path=AXE)
        page = console.sign_in(console.admin_key, f"/?tenant={console.tenant}")
        found = []
        of_tenant = [f"{path}{'&' if '?' in path else '?'}tenant={console.tenant}" for path in [*PAGES, *MORE, *of_ids]]
        for path in [*of_tenant, "/"]:
            page.goto(console.url + path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_load_state("domcontentloaded")
            expect(page.locator(".skeleton")).to_have_count(0)
            result = json.loads(page.evaluate("axe.run(document).then((r) => JSON.stringify(r.violations))"))
            found += [(path, one["id"], one["nodes"][0]["html"][:160]) for one in result]
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if overflow > 0:
                found.append((path, "wider than the window", str(overflow)))
        assert not found, "\n".join(map(str, found))
        watched.check()


def prepare(console: Console) -> list[str]:
    """The paths of pages that need an id."""
    console.queue("orders")
    dead = console.kill("orders", {"order": 2}, "HTTP 500 from crm")
    stored = console.call("POST", "/v1/queues/orders/messages", {"payload": {"order": 1}})
    console.call("PUT", "/v1/topics/news", {})
    console.call("POST", "/v1/topics/news/messages", {"subject": "a.b", "payload": {"one": 1}})
    console.call("POST", "/v1/buckets", {"name": "config", "history": 5})
    for value in ("red", "blue"):
        console.call("PUT", "/v1/buckets/config/keys/colour", value)
    console.call("PUT", "/v1/stream/log", None)
    console.call("PUT", "/v1/manifests/shop", {"resources": ["queues/orders", "topics/news"], "revision": 0})
    register(console)
    subscription = console.call("POST", "/v1/topics/news/subscriptions", {"delivery_type": "queue", "queue": "orders"})["id"]
    of_subscription = [f"/subscriptions/{subscription}{tab}" for tab in ("", "?tab=dead", "?tab=filter", "?tab=settings")]
    drawers = [f"/queues/orders?id={stored['messageId']}", f"/queues/orders?tab=dead&id={dead}"]
    return [f"/jobs/{stored['jobId']}", "/commands/bot/post", *drawers, *of_subscription]


RENDER_ALL = """async () => {
  const failed = []
  const links = [...document.querySelectorAll('nav[aria-label="Operations"] a')]
  for (const link of links) {
    link.click()
    await new Promise((next) => requestAnimationFrame(next))
    const buttons = [...document.querySelectorAll('main button')]
    if (!buttons.some((one) => one.textContent.includes('Send with this session'))) failed.push(link.textContent)
  }
  return [links.length, failed]
}"""


def test_every_operation_of_the_explorer_renders(console: Console) -> None:
    page = console.sign_in(path="/api-explorer")
    expect(page.get_by_role("navigation", name="Operations").get_by_role("link").first).to_be_visible()
    number, failed = page.evaluate(RENDER_ALL)
    assert number > 150
    assert failed == []


def test_the_guarantees_hold(console: Console) -> None:
    console.watched.allow("4\\d\\d")
    page = console.sign_in(path="/verify")
    page.get_by_role("button", name="Check the guarantees").click()
    expect(page.get_by_role("button", name="Check the guarantees")).to_be_enabled(timeout=60_000)
    expect(page.get_by_text(f"{len(checks()) - 1} of {len(checks())} hold, 1 skipped.")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="another tenant")).to_contain_text("needs a platform key")


def test_a_platform_key_verifies_that_tenants_do_not_see_each_other(console: Console) -> None:
    console.watched.allow("4\\d\\d")
    page = console.sign_in(console.admin_key, f"/verify?tenant={console.tenant}")
    page.get_by_role("button", name="Check the guarantees").click()
    expect(page.get_by_role("button", name="Check the guarantees")).to_be_enabled(timeout=100_000)
    expect(page.get_by_text(f"{len(checks())} of {len(checks())} hold.")).to_be_visible()
    tenants = console.call("GET", "/api/control/tenants?limit=1000", key=console.admin_key)["tenants"]
    assert not [one["id"] for one in tenants if one["id"].startswith("verify-") and one["state"] == "ready"]


def test_a_guarantee_that_does_not_hold_is_red_with_its_request_and_response(console: Console) -> None:
    console.watched.allow("4\\d\\d|503")
    page = console.sign_in(path="/verify")
    page.route("**/readyz", lambda route: route.fulfill(status=503, body="the engine does not answer"))
    page.get_by_role("button", name="Check the guarantees").click()
    expect(page.get_by_role("button", name="Check the guarantees")).to_be_enabled(timeout=60_000)
    expect(page.get_by_text(f"{len(checks()) - 2} of {len(checks())} hold, 1 do not, 1 skipped.")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="✖")).to_contain_text("the engine does not answer")


def test_with_the_keyboard_alone(console: Console) -> None:
    console.queue("orders")
    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues")).to_be_focused()
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name=re.compile("Find"))).to_be_focused()


def test_a_page_whose_code_is_gone_is_loaded_with_the_console_again(console: Console) -> None:
    """As in a tab that was open while another version was deployed."""
    console.watched.allow("ERR_FAILED")
    page = console.sign_in()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    failed = list[str]()

    def fail_once(route: Route) -> None:
        if failed:
            route.continue_()
        else:
            failed.append(route.request.url)
            route.abort()

    page.route("**/assets/Queues-*.js", fail_once)
    page.get_by_role("link", name="Queues").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert len(failed) == 1


def test_the_first_page_is_small() -> None:
    folder = ROOT / "src" / "postroad" / "console" / "static"
    index = (folder / "index.html").read_text()
    first = set(re.findall(r'/(assets/[^"]+\.js)', index))
    overview = next((folder / "assets").glob("Overview-*.js"))
    wanted = first | {f"assets/{overview.name}"}
    while True:
        more = {f"assets/{name}" for path in wanted for name in re.findall(r'from"\./([^"]+\.js)"', (folder / path).read_text())}
        if more <= wanted:
            break
        wanted |= more
    assert 10_000 < sum((folder / f"{path}.gz").stat().st_size for path in wanted) <= 60_000
