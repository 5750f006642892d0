"""Build the documentation as a static site (`make site`): pages, search, a menu of versions; no request leaves it.

The current tree is one version, each tag `v…` of the repository another. A dead link, an anchor that no heading has, a missing
image and an example that cannot be parsed are faults of the current version: they are printed with file and line, and nothing is
written.
"""

import argparse
import ast
import html
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
PARTS = Path(__file__).parent / "site"
TOKENS = ROOT / "src" / "postroad" / "http" / "tokens.css"
START = "docs/README.md"
SEARCH_TEXT_MAX = 1500  # characters of a section
SOURCE_BYTES_MAX = 400_000  # a longer file is cut

_REDIRECT = '<!doctype html><meta charset="utf-8"><title>Postroad</title><meta http-equiv="refresh" content="0; url={}">\n'
_markdown = MarkdownIt("commonmark", {"html": True}).enable("table")


class SiteFaults(Exception):
    """What is wrong, one line each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under one heading, for the search."""

    title: str
    anchor: str
    text: str


@dataclass
class Page:
    """A Markdown file, parsed."""

    path: str
    tokens: list[Token]
    anchors: dict[str, str] = field(default_factory=dict)

    @cached_property
    def title(self) -> str:
        return next(iter(self.anchors.values()), self.path)


def slug_of(heading: str, taken: "dict[str, str]") -> str:
    """The anchor of a heading, as forges make it."""
    base = re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")
    slug, number = base, 0
    while slug in taken:
        number += 1
        slug = f"{base}-{number}"
    return slug


def plain_text(inline: Token) -> str:
    return "".join(
        child.content if child.type in ("text", "code_inline") else " "
        for child in inline.children or []
        if child.content or child.type == "softbreak"
    )


def parse(path: str, text: str) -> Page:
    page = Page(path, _markdown.parse(text))
    for opening, inline in pairwise(page.tokens):
        if opening.type == "heading_open":
            title = plain_text(inline)
            slug = slug_of(title, page.anchors)
            page.anchors[slug] = title
            opening.attrSet("id", slug)
    return page


def target_of(path: str) -> str:
    """The place of a file in the site. Files of `docs/` are at its top, others below `project/`."""
    inside = path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"
    if inside.endswith(".md"):
        folder, name = posixpath.split(inside)
        return posixpath.join(folder, "index.html" if name == "README.md" else f"{name[:-3]}.html")
    return inside if inside.endswith((".png", ".svg", ".jpg")) else f"{inside}.html"


class Site:
    """One version of the documentation: the pages that can be reached from its start, and the files that they name."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version
        self.pages: dict[str, Page] = {}
        self.files: set[str] = set()
        self.faults: list[str] = []
        self._collect()
        self.navigation = self._navigation()  # rendering changes the links of a page

    def _collect(self) -> None:
        waiting = [START, *sorted(path.relative_to(self.root).as_posix() for path in (self.root / "docs").rglob("*.md"))]
        while waiting:
            path = waiting.pop(0)
            if path in self.pages:
                continue
            page = self.pages[path] = parse(path, (self.root / path).read_text())
            for _, href in _references(page):
                found = self._find(page, href)
                if found is None:
                    continue
                if found.endswith(".md"):
                    waiting.append(found)
                else:
                    self.files.add(found)

    def _find(self, page: Page, href: str) -> str | None:
        """The file that a link names, relative to the root; a folder stands for its README. None if it leaves the repository."""
        name = unquote(href.partition("#")[0])
        if re.match(r"[a-z]+:", href) or name.startswith("/"):
            return None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), name)) if name else page.path
        if path.startswith("..") or not (self.root / path).exists():
            return None
        if (self.root / path).is_dir():
            return f"{path}/README.md" if (self.root / path / "README.md").exists() else path
        return path

    def resolve(self, page: Page, href: str, line: int) -> str:
        """The address of a link within the site. Records a fault if there is no such file or heading."""
        if re.match(r"(https?|mailto):", href):
            return href
        found = self._find(page, href)
        anchor = href.partition("#")[2]
        if found is None:
            self.faults.append(f"{page.path}:{line}: {href}: there is no such file")
            return href
        if anchor and found in self.pages and anchor not in self.pages[found].anchors:
            self.faults.append(f"{page.path}:{line}: {href}: there is no such heading")
        target = posixpath.relpath(target_of(found), posixpath.dirname(target_of(page.path)) or ".")
        return f"{target}#{anchor}" if anchor else target

    def render(self, page: Page) -> str:
        for token, line in _with_lines(page.tokens):
            for child in token.children or []:
                if child.type == "link_open":
                    child.attrSet("href", self.resolve(page, str(child.attrGet("href")), line))
                elif child.type == "image":
                    child.attrSet("src", self.resolve(page, str(child.attrGet("src")), line))
            if token.type == "fence":
                fault = example_fault(token.info.strip(), token.content)
                if fault:
                    self.faults.append(f"{page.path}:{line}: the example cannot be parsed: {fault}")
        return str(_markdown.renderer.render(page.tokens, _markdown.options, {}))

    def sections(self, page: Page) -> Iterator[Section]:
        title, anchor, text = page.title, "", list[str]()
        for before, token in zip([None, *page.tokens], page.tokens, strict=False):
            if before is not None and before.type == "heading_open":
                if text:
                    yield Section(title, anchor, " ".join(text)[:SEARCH_TEXT_MAX])
                title, anchor, text = plain_text(token), str(before.attrGet("id")), []
            elif token.type == "inline":
                text.append(plain_text(token))
            elif token.type == "fence":
                text.append(token.content)
        yield Section(title, anchor, re.sub(r"\s+", " ", " ".join(text))[:SEARCH_TEXT_MAX])

    def _navigation(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Groups of pages by reader: the first table of the start page."""
        groups: list[tuple[str, list[tuple[str, str]]]] = []
        row: list[Token] = []
        for token in self.pages[START].tokens:
            if token.type == "table_close":
                break
            if token.type == "tr_open":
                row = []
            elif token.type == "inline":
                row.append(token)
            elif token.type == "tr_close" and len(row) == 2:
                links = list(self._links(row[1]))
                if links:
                    groups.append((plain_text(row[0]), links))
        return groups

    def _links(self, cell: Token) -> Iterator[tuple[str, str]]:
        children = cell.children or []
        for opening, text in pairwise(children):
            if opening.type == "link_open":
                found = self._find(self.pages[START], str(opening.attrGet("href")))
                if found is not None:
                    yield text.content, target_of(found)


def _with_lines(tokens: list[Token]) -> Iterator[tuple[Token, int]]:
    line = 1
    for token in tokens:
        if token.map:
            line = token.map[0] + 1
        yield token, line


def _references(page: Page) -> Iterator[tuple[int, str]]:
    for token, line in _with_lines(page.tokens):
        for child in token.children or []:
            if child.type == "link_open":
                yield line, str(child.attrGet("href"))
            elif child.type == "image":
                yield line, str(child.attrGet("src"))


def _parse_python(text: str) -> None:
    compile(text, "example", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _parse_shell(text: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise ValueError(checked.stderr.strip().splitlines()[0])


_PARSERS: dict[str, Callable[[str], object]] = {
    "python": _parse_python,
    "json": json.loads,
    "toml": tomllib.loads,
    "bash": _parse_shell,
    "sh": _parse_shell,
}


def example_fault(language: str, text: str) -> str | None:
    """Why an example is not of its language; None if it is, or the language is not checked here."""
    parser = _PARSERS.get(language)
    try:
        if parser is not None:
            parser(text)
    except (SyntaxError, ValueError) as exc:
        return str(exc)
    return None


def _source(path: Path, shown: str) -> str:
    """A page with the content of a file, or the names of a folder."""
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        return f"<h1>{html.escape(shown)}</h1><ul>{''.join(f'<li><code>{html.escape(name)}</code></li>' for name in names)}</ul>"
    text = path.read_bytes()[:SOURCE_BYTES_MAX].decode(errors="replace")
    return f"<h1>{html.escape(shown)}</h1><pre><code>{html.escape(text)}</code></pre>"


class SiteWriter:
    """Writes one version into its folder."""

    def __init__(self, site: Site, folder: Path, versions: list[str]) -> None:
        self._site, self._folder, self._versions = site, folder, versions
        self._template = (PARTS / "page.html").read_text()

    def write(self) -> None:
        entries = []
        for page in self._site.pages.values():
            sections = list(self._site.sections(page))
            self._write_page(target_of(page.path), page.title, self._site.render(page), page)
            where = target_of(page.path)
            entries += [[page.title, one.title, f"{where}#{one.anchor}" if one.anchor else where, one.text] for one in sections]
        for path in sorted(self._site.files):
            target = target_of(path)
            if target.endswith(".html"):
                self._write_page(target, path, _source(self._site.root / path, path), None)
            else:
                self._place(target).write_bytes((self._site.root / path).read_bytes())
        index = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
        self._place("search-index.js").write_text(f"window.searchIndex = {index}\n")
        self._place("site.css").write_text(TOKENS.read_text() + (PARTS / "site.css").read_text())
        self._place("site.js").write_text((PARTS / "site.js").read_text())

    def _place(self, target: str) -> Path:
        path = self._folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write_page(self, target: str, title: str, body: str, page: Page | None) -> None:
        up = posixpath.relpath(".", posixpath.dirname(target) or ".")
        filled = {
            "title": html.escape(title),
            "version": html.escape(self._site.version),
            "root": "" if up == "." else f"{up}/",
            "versions": "".join(self._version_option(one) for one in self._versions),
            "navigation": self._navigation(target),
            "contents": _contents(page),
            "body": body,
        }
        self._place(target).write_text(re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], self._template))

    def _version_option(self, version: str) -> str:
        chosen = " selected" if version == self._site.version else ""
        return f"<option{chosen}>{html.escape(version)}</option>"

    def _navigation(self, target: str) -> str:
        parts = []
        for name, links in self._site.navigation:
            parts.append(f"<h2>For {html.escape(name)}</h2><ul>")
            for text, place in links:
                here = ' aria-current="page"' if place == target else ""
                where = posixpath.relpath(place, posixpath.dirname(target) or ".")
                parts.append(f'<li><a href="{where}"{here}>{html.escape(text)}</a></li>')
            parts.append("</ul>")
        return "".join(parts)


def _contents(page: Page | None) -> str:
    """The second-level headings of a page, if there are several."""
    if page is None:
        return ""
    found = [
        (str(token.attrGet("id")), page.anchors[str(token.attrGet("id"))])
        for token in page.tokens
        if token.type == "heading_open" and token.tag == "h2"
    ]
    if len(found) < 3:
        return ""
    items = "".join(f'<li><a href="#{anchor}">{html.escape(title)}</a></li>' for anchor, title in found)
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2><ul>{items}</ul></nav>'


def released(root: Path) -> list[str]:
    """The tags `v…` of the repository, newest first."""
    command = ["git", "-C", str(root), "tag", "--list", "v[0-9]*", "--sort=-version:refname"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


def build(root: Path, out: Path) -> list[str]:
    """Write the site and return its versions, the current tree first. Raises SiteFaults."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    tags = [tag for tag in released(root) if tag != f"v{version}"]
    versions = [version, *[tag[1:] for tag in tags]]
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "site"
        current = Site(root, version)
        SiteWriter(current, built / version, versions).write()
        if current.faults:
            raise SiteFaults(sorted(set(current.faults)))
        for tag in tags:
            tree = Path(scratch) / tag
            tree.mkdir()
            archive = subprocess.run(["git", "-C", str(root), "archive", tag], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
            SiteWriter(Site(tree, tag[1:]), built / tag[1:], versions).write()
        (built / "index.html").write_text(_REDIRECT.format(f"{version}/index.html"))
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, out)
    return versions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    given = parser.parse_args()
    try:
        versions = build(ROOT, given.out)
    except SiteFaults as exc:
        print(f"{exc}\nsite: {len(exc.faults)} faults, nothing was written", file=sys.stderr)
        return 1
    print(f"site: {given.out / 'index.html'}, versions {', '.join(versions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
