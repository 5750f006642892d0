"""The documentation site: built from the real pages, and from small trees that have faults."""

import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from scripts.build_site import ROOT, SiteFaults, build, slug_of

pytestmark = pytest.mark.engine  # it runs git and bash
ASSETS = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}


class Found(HTMLParser):
    """Links, assets and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ASSETS and given.get(ASSETS[tag]):
            self.assets.append(str(given[ASSETS[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    [version, *_] = build(ROOT, out)
    return out / version


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Found]:
    return {path: Found(path.read_text()) for path in site.rglob("*.html")}


def test_every_link_of_the_site_leads_to_a_page_and_a_heading(pages: dict[Path, Found]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            where, anchor = urldefrag(link)
            if where.startswith(("http:", "https:", "mailto:")):
                continue
            target = (path.parent / unquote(where)).resolve() if where else path
            if not target.is_file() or (anchor and anchor not in pages[target].ids):
                dead.append((path.name, link))
    assert dead == []
    assert len(pages) > 100


def test_no_asset_comes_from_another_host(site: Path, pages: dict[Path, Found]) -> None:
    for path, page in pages.items():
        assert all("//" not in asset and (path.parent / asset).is_file() for asset in page.assets), path
    for name in ("site.css", "site.js"):
        assert "//" not in (site / name).read_text().replace("// Search and", "")
    assert "--accent: light-dark(" in (site / "site.css").read_text(), "the tokens of the console"


def test_the_search_index_has_every_page_with_its_sections(site: Path, pages: dict[Path, Found]) -> None:
    entries = json.loads((site / "search-index.js").read_text().removeprefix("window.searchIndex = ").replace("<\\/", "</"))
    indexed = {urldefrag(where)[0] for _, _, where, _ in entries}
    documents = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name.replace("README.md", "index.md").replace(".md", ".html") for name in documents} <= indexed
    for _, _, where, _ in entries:
        name, anchor = urldefrag(where)
        assert not anchor or anchor in pages[site / name].ids, where
    assert any(where == "queues.html#extend-a-lease" and "newReceiptId" in text for _, _, where, text in entries)


def _tree(folder: Path, **pages: str) -> Path:
    (folder / "docs").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nversion = "2.0"\n')
    (folder / "docs" / "README.md").write_text("# Start\n\n| for | pages |\n| --- | --- |\n| all | [One](one.md) |\n")
    for name, text in {"one": "# One\n", **pages}.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# Two\n\n[x](three.md)\n", "docs/two.md:3: three.md: there is no such file"),
        ("# Two\n\n[x](one.md#none)\n", "docs/two.md:3: one.md#none: there is no such heading"),
        ("# Two\n\n[x](#none)\n", "docs/two.md:3: #none: there is no such heading"),
        ("# Two\n\n![x](no.png)\n", "docs/two.md:3: no.png: there is no such file"),
        ("# Two\n\n[x](../../outside.md)\n", "docs/two.md:3: ../../outside.md: there is no such file"),
        ('# Two\n\n```json\n{"a": }\n```\n', "docs/two.md:3: the example cannot be parsed: Expecting value"),
        ("# Two\n\n```python\ndef\n```\n", "docs/two.md:3: the example cannot be parsed: invalid syntax"),
        ("# Two\n\n```bash\nif true\n```\n", "docs/two.md:3: the example cannot be parsed: bash:"),
    ],
)
def test_a_fault_breaks_the_build(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SiteFaults) as raised:
        build(_tree(tmp_path / "tree", two=text), tmp_path / "site")
    assert len(raised.value.faults) == 1
    assert raised.value.faults[0].startswith(fault)
    assert not (tmp_path / "site").exists()


def test_each_tag_is_a_version(tmp_path: Path) -> None:
    tree = _tree(tmp_path / "tree", one="# One\n\nas it was\n")
    git = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1.9"], ["tag", "v1.10"], ["tag", "other"]):
        subprocess.run([*git, *command], check=True)
    (tree / "docs" / "one.md").write_text("# One\n\nas it is\n")

    assert build(tree, tmp_path / "site") == ["2.0", "1.10", "1.9"]

    assert "as it was" in (tmp_path / "site" / "1.9" / "one.html").read_text()
    current = (tmp_path / "site" / "2.0" / "one.html").read_text()
    assert "as it is" in current
    assert '<h2>For all</h2><ul><li><a href="one.html" aria-current="page">One</a></li></ul>' in current
    assert "<option selected>2.0</option><option>1.10</option><option>1.9</option>" in current
    assert "2.0/index.html" in (tmp_path / "site" / "index.html").read_text()


def test_anchors_are_those_of_forges() -> None:
    taken: dict[str, str] = {}
    for heading, slug in [
        ("Purge and pause", "purge-and-pause"),
        ("`/v1/ws`, again?", "v1ws-again"),
        ("Purge and pause", "purge-and-pause-1"),
    ]:
        assert slug_of(heading, taken) == slug
        taken[slug] = heading
