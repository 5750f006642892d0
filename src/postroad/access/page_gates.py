"""Gates in front of the console's pages: `ui_token`, `admin_ui_token` and `admin_host`. They protect pages and never grant data.

`?access=<token>` in the URL of a page sets a cookie and is removed from the URL by a redirect. A valid sign-in link opens the
gate, too, and stays in the URL, as the page redeems it.
"""

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

import msgspec

from postroad.access.login_throttle import LoginThrottle
from postroad.access.settings import AccessSettings
from postroad.access.web_sessions import SignInLinks, cookie_of, set_cookie
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.kernel.clock import Clock
from postroad.kernel.configuration import Secret
from postroad.kernel.errors import RouteNotFound

GATE_COOKIE = "postroad_gate"
_OWNER = b"gate"
_GATE_SECONDS = 7 * 86_400


class _Pass(msgspec.Struct, frozen=True, array_like=True):
    v: int
    digests: tuple[str, ...]  # of the tokens whose pages it opens
    expires_at_ms: int


_decode = msgspec.msgpack.Decoder(_Pass).decode


class PageGates:
    def __init__(
        self,
        settings: AccessSettings,
        signer: Signer,
        links: SignInLinks,
        throttle: LoginThrottle,
        clock: Clock,
        *,
        public_url: str | None = None,
    ) -> None:
        self._signer, self._links, self._throttle, self._clock, self._public_url = signer, links, throttle, clock, public_url
        self._user, self._admin, self._admin_host = settings.ui_token, settings.admin_ui_token, settings.admin_host

    def check(self, request: Request, *, is_admin_page: bool = False) -> Response | None:
        """None if the page or asset may be served, else the response to send instead.

        Raises RouteNotFound for an admin page on another host, RateLimited and Unauthenticated for a wrong token.
        """
        if is_admin_page and self._admin_host is not None and _host_name(request) != self._admin_host.lower():
            raise RouteNotFound(f"there is no route {request.path[:200]}")
        needed = self._needed(is_admin_page=is_admin_page)
        if needed is None:
            return None
        query = parse_qsl(request.query_string.decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "access"]
        is_open = self._is_open(request, needed)
        if not given or (is_open and self._links.verify(given[0]) is not None):
            return None if is_open else _refusal()
        if self._links.verify(given[0]) is not None:
            return self._redirect(request, query, self._tokens_up_to(needed))
        opened = [token for token in self._tokens() if hmac.compare_digest(token.reveal().encode(), given[0].encode())]
        if not opened:
            raise self._throttle.record_failure(request.client, "the access token of the page is wrong")
        rest = [(name, value) for name, value in query if name != "access"]
        return self._redirect(request, rest, self._tokens_up_to(opened[0]))

    def _tokens(self) -> list[Secret]:
        return [token for token in (self._admin, self._user) if token is not None]

    def _tokens_up_to(self, token: Secret) -> list[Secret]:
        """The tokens whose pages this one opens: the admin token opens all."""
        return self._tokens() if token == self._admin else [token]

    def _needed(self, *, is_admin_page: bool) -> Secret | None:
        return self._admin if is_admin_page and self._admin is not None else self._user

    def _is_open(self, request: Request, needed: Secret) -> bool:
        try:
            content = _decode(self._signer.verify(_OWNER, cookie_of(request, GATE_COOKIE) or ""))
        except (SignatureInvalid, msgspec.DecodeError, UnicodeEncodeError):
            return False
        return content.expires_at_ms > self._clock() and _digest(needed) in content.digests

    def _redirect(self, request: Request, query: list[tuple[str, str]], opened: list[Secret]) -> Response:
        content = _Pass(1, tuple(_digest(token) for token in opened), self._clock() + _GATE_SECONDS * 1000)
        value = self._signer.sign(_OWNER, msgspec.msgpack.encode(content))
        # Not Strict: the redirect of a link on another site would arrive without the cookie.
        cookie = set_cookie(request, GATE_COOKIE, value, _GATE_SECONDS, self._public_url, "Lax")
        # Only the path: `//host` would lead to another site.
        location = "/" + request.path.lstrip("/") + (f"?{urlencode(query)}" if query else "")
        headers = [(b"location", location.encode()), (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")]
        return Response(status=303, headers=[*headers, cookie])


def _refusal() -> Response:
    text = b"This page needs an access token: open it with ?access=<token>. The operator of this installation has it.\n"
    return Response(text, status=401, media=b"text/plain; charset=utf-8", headers=[(b"cache-control", b"no-store")])


def _digest(token: Secret) -> str:
    return hashlib.sha256(b"gate " + token.reveal().encode()).hexdigest()[:32]


def _host_name(request: Request) -> str:
    host = (request.header(b"host") or "").lower()
    return host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
