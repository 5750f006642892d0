"""The tests of the JavaScript client (`clients/js/tests/cases.js`) in a page and in a worker of chromium."""

import subprocess

import pytest
from playwright.sync_api import Page, Route

from tests.architecture.source import ROOT
from tests.browser.console import Console

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]  # twenty cases
CLIENT = ROOT / "clients" / "js"
IN_PAGE = """async (given) => {
  const { cases, context } = await import('/js-client/tests/cases.js')
  const outcomes = {}
  for (const [name, run] of Object.entries(cases)) {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error('it took 60 s')), 60_000))
    outcomes[name] = await Promise.race([run(context(given)), late]).then(() => 'passed', (error) => `${error.stack}`)
  }
  return outcomes
}"""
IN_WORKER = """(given) => new Promise((resolve, reject) => {
  const worker = new Worker('/js-client/tests/worker.js', { type: 'module' })
  worker.onmessage = ({ data }) => resolve(data)
  worker.onerror = reject
  worker.postMessage(given)
})"""


@pytest.fixture
def page(console: Console) -> Page:
    """An empty page of the server's origin, which also has the files of the client."""
    subprocess.run(["sh", "scripts/build-js-client"], cwd=ROOT, check=True)
    console.watched.allow("4[0-9][0-9]|503|left the origin: http://127.0.0.1:9/|ERR_")  # the cases provoke them

    def serve(route: Route) -> None:
        path = route.request.url.split("/js-client/", 1)[1]
        if path:
            route.fulfill(path=str(CLIENT / path), content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html><title>client</title>", content_type="text/html")

    console.watched.context.route("**/js-client/**", serve)
    console.page.goto(f"{console.url}/js-client/")
    return console.page


@pytest.mark.parametrize("script", [IN_PAGE, IN_WORKER], ids=["page", "worker"])
def test_the_client_in_chromium(console: Console, page: Page, script: str) -> None:
    outcomes = page.evaluate(script, {"url": console.url, "key": console.key})
    assert len(outcomes) > 10
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {}
