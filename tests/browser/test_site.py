"""The documentation site in a browser, from files: search and the menu of versions."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from scripts.build_site import ROOT, build

from tests.browser.console import Watched

pytestmark = pytest.mark.browser


def test_a_reader_finds_a_page_and_changes_the_version(browser: Browser, tmp_path: Path) -> None:
    [version, *_] = build(ROOT, tmp_path / "site")
    with Watched(browser, "file://") as watched:
        page = watched.context.new_page()
        page.goto(f"file://{tmp_path}/site/index.html")
        expect(page.get_by_role("heading", level=1, name="Documentation")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("extend lease")
        page.get_by_role("link", name="Queues: Extend a lease").click()
        expect(page.get_by_role("heading", name="Extend a lease")).to_be_in_viewport()
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues", exact=True)).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.get_by_label("Version")).to_have_value(version)
        page.get_by_role("searchbox").fill("zzzzzz")
        expect(page.get_by_text("Nothing found.")).to_be_visible()
        watched.check()
