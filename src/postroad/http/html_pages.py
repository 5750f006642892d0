"""HTML pages that need no console: API, errors, start page, not found."""

import difflib
import html
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from postroad.http.response import Response
from postroad.http.security_headers import page_headers
from postroad.kernel.errors import PostroadError


@cache
def docs_page() -> bytes:
    """The API page with the design tokens of everything else."""
    page = (files("postroad.http") / "docs.html").read_text()
    return page.replace("/* tokens.css */", (files("postroad.http") / "tokens.css").read_text()).encode()


def page_response(page: bytes, status: int = 200) -> Response:
    return Response(page, status, b"text/html; charset=utf-8", security=page_headers(page))


def errors_page(errors: Iterable[type[PostroadError]]) -> bytes:
    """The error reference, which the `type` of every problem links to."""
    rows = "".join(
        f'<tr id="{error.code}"><td><code>{error.code}</code><td>{error.status}<td>{"yes" if error.retryable else "no"}'
        f"<td>{error.title}<td>{_prose(error.__doc__ or '')}"
        for error in errors
    )
    heads = "".join(f"<th scope=col>{name}" for name in ("code", "status", "retry helps", "title", "meaning"))
    return plain_page(
        "Postroad: errors",
        "<h1>Errors</h1><p>Every error is <code>application/problem+json</code>; its <code>type</code> points to a row of this "
        f'table. <a href="/docs">API</a></p><table><thead><tr>{heads}<tbody>{rows}</table>',
    )


def landing_page(version: str, note: str) -> bytes:
    """The page of an installation without a console. `note` is HTML."""
    links = (
        ("/docs", "API", "read and try every operation"),
        ("/docs/errors", "Errors", "the meaning of each error code"),
        ("/openapi.json", "openapi.json", "the description of the API for tools"),
        ("/readyz", "Readiness", "the state of this process"),
    )
    items = "".join(f'<li><a href="{path}">{name}</a>: {text}' for path, name, text in links)
    return plain_page(
        "Postroad",
        f"<h1>Postroad {html.escape(version)}</h1><p>{note}</p>"
        f"<nav aria-label=Documentation><ul>{items}</ul></nav>"
        "<p>The guide is in the folder <code>docs</code> of the source; start with <code>docs/README.md</code>. "
        "On the command line: <code>postroad --help</code>.</p>",
    )


def missing_page(path: str, sections: Iterable[str]) -> bytes:
    """For a browser that opens a path without a route: the pages whose names resemble it."""
    found = difflib.get_close_matches(path.strip("/").partition("/")[0].lower()[:100], sorted(sections), n=3, cutoff=0.5)
    items = "".join(f'<li><a href="/{name}">{html.escape(name)}</a>' for name in found)
    return plain_page(
        "Postroad: not found",
        f"<h1>There is no such page</h1><p>Nothing is at <code>{html.escape(path[:200])}</code>.</p>"
        f"{'<p>The nearest pages:</p><ul>' + items + '</ul>' if items else ''}"
        '<p><a href="/">Start</a> · <a href="/docs">API</a></p>',
    )


def plain_page(title: str, content: str) -> bytes:
    """A page without scripts. `content` is HTML."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{(files('postroad.http') / 'tokens.css').read_text()}"
        "body{background:var(--bg);color:var(--text);font:14px/20px var(--sans);margin:24px auto;max-width:70rem;padding:0 16px}"
        "h1{font-size:20px;line-height:28px}a{color:var(--accent)}code{font:12px/18px var(--mono)}"
        "td,th{padding:6px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}th{color:var(--dim)}"
        "td,code{overflow-wrap:anywhere}@media(max-width:45rem){table,tbody,tr,td{display:block}"
        "thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
        "tr{padding:8px 0;border-bottom:1px solid var(--line)}"
        "td{border:0;padding:0}td:nth-child(3)::before{content:'retry helps: '}}"
        f"tr:target{{background:var(--tint)}}</style><main>{content}</main>"
    ).encode()


def _prose(text: str) -> str:
    """Text in which backticks mark code, as HTML."""
    parts = [html.escape(part, quote=False) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def prefers_html(headers: Mapping[bytes, bytes]) -> bool:
    """True for a browser: it lists HTML, and before JSON."""
    accepted = [kind.partition(b";")[0].strip().lower() for kind in headers.get(b"accept", b"").split(b",")]
    kinds = [kind for kind in accepted if kind in (b"text/html", b"application/json")]
    return kinds[:1] == [b"text/html"]
