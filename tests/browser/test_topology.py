"""The topology of a cluster of three servers, one of which stops."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.console import Console, Watched
from tests.browser.keyboard import Keyboard
from tests.cluster import Cluster, Node

pytestmark = pytest.mark.browser
REGIONS = ("eu-west", "eu-central", "nl-ams")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), tags=[(f"region:{region}",) for region in REGIONS])
    try:
        for node in made.nodes:  # not in a thread, with whose end they would end
            node.start()
        in_thread(made.wait_ready())
        in_thread(made.gateway("up", "--workers", "1").start().ready(240))
        yield made
    finally:
        made.end()


def in_thread(work: Any) -> Any:
    """The browser's event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.mark.timeout(600)
def test_n13_which_node_is_down_and_what_it_affects(browser: Browser, cluster: Cluster) -> None:
    [gateway] = cluster.gateways
    with Watched(browser, gateway.url) as watched:
        watched.allow("503|Failed to load resource")  # while leaders are elected
        console = Console(watched, gateway)
        console.queue("orders", replicas=3)
        console.queue("notes", replicas=1)
        alone: Node = in_thread(cluster.leader(f"Q_{console.tenant}__notes"))
        page = console.sign_in(console.admin_key, f"/?tenant={console.tenant}")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        console.open(f"/topology?tab=installation&stop={alone.name}&tenant={console.tenant}")
        expect(page.get_by_role("status").filter(has_text="All 3 servers are up")).to_be_visible(timeout=120_000)
        expect(page.get_by_role("status").filter(has_text=f"If {alone.name} stops")).to_contain_text("notes")
        console.open(f"/?tenant={console.tenant}")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        alone.kill()
        keyboard = Keyboard(page)
        keyboard.go("m")
        down = page.get_by_role("status").filter(has_text="1 node down")
        expect(down).to_contain_text(alone.name, timeout=120_000)
        expect(down).to_contain_text("1 stream without a leader: queue/notes", timeout=120_000)
        keyboard.taken(1)
        tabs = page.get_by_role("main").get_by_role("navigation")
        tabs.get_by_role("link", name="Installation", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="1 server down")).to_contain_text("without a quorum", timeout=120_000)
        expect(page.get_by_role("row", name=f"{alone.name} down")).to_be_visible()
        other = next(node for node in cluster.nodes if node is not alone)
        page.get_by_role("row", name=f"{other.name} up").get_by_role("button", name="What if it stops").click()
        expect(page.get_by_role("status").filter(has_text=f"If {other.name} stops")).to_contain_text("lose their quorum")
        tabs.get_by_role("link", name="Regions", exact=True).click()
        expect(page.get_by_role("group", name="Regions and their nodes")).to_contain_text("✖")
        alone.start()
        expect(page.get_by_role("status").filter(has_text="All 3 nodes are up")).to_be_visible(timeout=120_000)
