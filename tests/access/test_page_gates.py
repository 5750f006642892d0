"""Gates in front of the console's pages."""

from dataclasses import replace
from typing import Any

import pytest

from postroad.access.login_throttle import LoginThrottle
from postroad.access.page_gates import GATE_COOKIE, PageGates
from postroad.access.settings import AccessSettings
from postroad.access.web_sessions import SignInLinks
from postroad.crypto.signing import Signer
from postroad.http.request import Request, no_body
from postroad.kernel.configuration import Secret
from postroad.kernel.errors import RateLimited, RouteNotFound, Unauthenticated
from tests.gateway import ShiftedClock

USER, ADMIN = "a token of the pages", "a token of the admin pages"


class Gates:
    """Gates, and a browser with its cookies."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ShiftedClock()
        self.links = SignInLinks(Signer(("a platform key",), "link"), self.clock)
        self.cookie = ""
        self.use(**settings)

    def use(self, **settings: Any) -> None:
        given = replace(AccessSettings(), **settings)
        self.gates = PageGates(given, Signer(("a platform key",), "gate"), self.links, LoginThrottle(2, 1), self.clock)

    def open(self, url: str, *, is_admin_page: bool = False, host: str = "localhost:8080") -> tuple[int, str]:
        """The status, 200 if the page may be served, and the redirect."""
        path, _, query = url.partition("?")
        headers = {b"host": host.encode()} | ({b"cookie": self.cookie.encode()} if self.cookie else {})
        request = Request("GET", path, "r", headers, {}, no_body, None)  # type: ignore[arg-type]
        request.query_string = query.encode()
        response = self.gates.check(request, is_admin_page=is_admin_page)
        if response is None:
            return 200, ""
        given = dict(response.headers)
        if b"set-cookie" in given:
            self.cookie = given[b"set-cookie"].decode().partition(";")[0]
            assert self.cookie.startswith(GATE_COOKIE) and b"HttpOnly" in given[b"set-cookie"]
        return response.status, given.get(b"location", b"").decode()


def test_without_tokens_every_page_is_served() -> None:
    gates = Gates()
    assert gates.open("/queues") == (200, "")
    assert gates.open("/admin/keys?access=anything", is_admin_page=True) == (200, "")


def test_a_page_is_served_after_its_token_which_leaves_the_url() -> None:
    gates = Gates(ui_token=Secret(USER))
    assert gates.open("/queues") == (401, "")
    assert gates.open(f"/queues?tab=dead&access={USER.replace(' ', '+')}&id=1") == (303, "/queues?tab=dead&id=1")
    assert gates.open("/queues?tab=dead&id=1") == (200, "")
    assert USER not in gates.cookie


def test_a_redirect_stays_on_this_site() -> None:
    gates = Gates(ui_token=Secret(USER))
    assert gates.open(f"//evil.example?access={USER}") == (303, "/evil.example")


def test_wrong_tokens_are_refused_and_throttled() -> None:
    gates = Gates(ui_token=Secret(USER))
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            gates.open("/?access=wrong")
    with pytest.raises(RateLimited):
        gates.open("/?access=wrong")
    assert gates.cookie == ""


def test_admin_pages_need_the_admin_token_which_opens_all() -> None:
    gates = Gates(ui_token=Secret(USER), admin_ui_token=Secret(ADMIN))
    gates.open(f"/?access={USER}")
    assert gates.open("/") == (200, "")
    assert gates.open("/admin/keys", is_admin_page=True) == (401, "")
    gates.open(f"/admin/keys?access={ADMIN}", is_admin_page=True)
    assert gates.open("/admin/keys", is_admin_page=True) == (200, "")
    assert gates.open("/") == (200, "")


def test_the_user_token_protects_admin_pages_that_have_no_own() -> None:
    gates = Gates(ui_token=Secret(USER))
    assert gates.open("/admin/keys", is_admin_page=True) == (401, "")
    gates.open(f"/admin/keys?access={USER}", is_admin_page=True)
    assert gates.open("/admin/keys", is_admin_page=True) == (200, "")


def test_a_changed_token_and_time_close_the_gate() -> None:
    gates = Gates(ui_token=Secret(USER))
    gates.open(f"/?access={USER}")
    gates.clock.ahead_ms = 8 * 86_400_000
    assert gates.open("/") == (401, "")
    gates.clock.ahead_ms = 0
    gates.use(ui_token=Secret("another token of the pages"))
    assert gates.open("/") == (401, "")


def test_a_sign_in_link_opens_the_gate_and_stays_in_the_url_for_the_page() -> None:
    gates = Gates(ui_token=Secret(USER), admin_ui_token=Secret(ADMIN))
    code = gates.links.issue("k", "t", gates.clock() + 60_000)
    assert gates.open(f"/?access={code}") == (303, f"/?access={code}")
    assert gates.open(f"/?access={code}") == (200, "")
    assert gates.open("/admin/keys", is_admin_page=True) == (401, "")
    gates.cookie, gates.clock.ahead_ms = "", 61_000
    with pytest.raises(Unauthenticated):
        gates.open(f"/?access={code}")


def test_admin_pages_are_served_on_their_host_only() -> None:
    gates = Gates(admin_host="admin.example")
    for host in ("admin.example", "Admin.Example:8443"):
        assert gates.open("/admin/keys", is_admin_page=True, host=host) == (200, "")
    for host in ("example", "", "[::1]:8080", "admin.example.evil"):
        with pytest.raises(RouteNotFound):
            gates.open("/admin/keys", is_admin_page=True, host=host)
        assert gates.open("/queues", host=host) == (200, "")
