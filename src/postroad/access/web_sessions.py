"""Web sessions: a cookie that acts as a key, so that a page needs no key in the browser's storage; and one-time sign-in links.

    postroad_session = <signed>      signed content: format, key id, id of the key's text, session id, expiry
    pr_access_<signed>               signed content: format, key id, id of the key's text, id of the link, expiry

Both become invalid with the text of the key. A session that was signed out is in a table that every worker follows. Browsers send
cookies with requests that other sites make, so a request with the cookie must come from this origin.
"""

import contextlib

import msgspec

from postroad.access.identity_cache import IdentityCache
from postroad.access.keys import key_hash
from postroad.access.records import EndedSessionRecord, KeyHash
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.http.request import Request
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.storage_budget import StoreBudget
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Forbidden
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id

COOKIE = "postroad_session"
LINK_PREFIX = "pr_access_"
SIGN_IN_LINK = "sign-in link"  # purpose of the signature
_SESSION, _LINK = b"session", b"link"
_SAFE_METHODS = ("GET", "HEAD")
_COOKIE_BYTES_MAX = 8192


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    v: int
    key_id: str
    text_id: str
    id: str
    expires_at_ms: int


_decode = msgspec.msgpack.Decoder(_Signed).decode


class SignInLinks:
    """Issues and verifies sign-in links. A link needs no storage until it is used."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer, self._clock = signer, clock

    def issue(self, key_id: str, text_id: str, expires_at_ms: int) -> str:
        content = msgspec.msgpack.encode(_Signed(1, key_id, text_id, new_id(), expires_at_ms))
        return LINK_PREFIX + self._signer.sign(_LINK, content)

    def verify(self, code: str) -> _Signed | None:
        """The content of a link that has not expired; it may have been used."""
        if not code.startswith(LINK_PREFIX):
            return None
        return _verified(self._signer, _LINK, code.removeprefix(LINK_PREFIX), self._clock())


class WebSessions:
    def __init__(
        self,
        identities: IdentityCache,
        signer: Signer,
        links: SignInLinks,
        ended: ReplicatedTable[EndedSessionRecord],
        used: Bucket,
        clock: Clock,
        store: StoreBudget,
        *,
        seconds: int,
    ) -> None:
        self._identities, self._signer, self.links, self._ended = identities, signer, links, ended
        self._used, self._clock, self._store, self._seconds = used, clock, store, seconds
        ended.on_change(self._on_ended)

    def _on_ended(self, session: str, record: EndedSessionRecord | None) -> None:
        if record is not None:
            self._identities.end_watches(session)

    def start(self, caller: Caller) -> tuple[str, int]:
        """A session of the caller's key; return the value of its cookie, and its expiry, at the latest the key's."""
        session, until_ms = new_id(), self._clock() + self._seconds * 1000
        expires_at_ms = min(until_ms, caller.expires_at_ms or until_ms)
        content = msgspec.msgpack.encode(_Signed(1, caller.key_id, caller.text_id, session, expires_at_ms))
        return self._signer.sign(_SESSION, content), expires_at_ms

    async def redeem(self, code: str) -> Caller | None:
        """The caller of the key of a sign-in link; None if the link or the key is invalid, or the link was used.

        Raises EngineFull, EngineUnavailable, TenantDisabled, RegistryStale.
        """
        self._identities.check_fresh()
        link = self.links.verify(code)
        if link is None:
            return None
        now = self._clock()
        caller = await self._identities.caller_of_web_session(link.key_id, link.text_id, "", now + self._seconds * 1000, None)
        if caller is None or not await self._is_first_use(link.id, link.expires_at_ms - now):
            return None
        return caller

    async def _is_first_use(self, link_id: str, left_ms: int) -> bool:
        if self._store.is_reserved:
            raise self._store.refuse()
        try:
            await self._used.create(link_id, b"", ttl_seconds=left_ms // 1000 + 60)
        except Conflict:
            return False
        return True

    async def authenticate(self, cookie: str, named_tenant: str | None) -> Caller | None:
        """The caller of a session; None if the session has ended, or its key is not valid any more.

        Raises TenantNotFound (for platform keys only), TenantDisabled, Forbidden.
        """
        content = _verified(self._signer, _SESSION, cookie, self._clock())
        if content is None or self._ended.get(content.id) is not None:
            return None
        return await self._identities.caller_of_web_session(
            content.key_id, content.text_id, content.id, content.expires_at_ms, named_tenant
        )

    def expiry_of(self, request: Request) -> int | None:
        """The end of the session of a request with a valid cookie."""
        content = _verified(self._signer, _SESSION, session_cookie(request) or "", self._clock())
        return content.expires_at_ms if content is not None else None

    async def end(self, caller: Caller) -> None:
        """End the caller's session on every worker, its live streams included. Raises EngineUnavailable."""
        left_ms = (caller.expires_at_ms or self._clock() + self._seconds * 1000) - self._clock()
        record, seconds = EndedSessionRecord(key=caller.key_id), max(1, left_ms // 1000 + 60)
        with contextlib.suppress(Conflict):  # another tab signed out
            await self._ended.create(caller.session, record, ttl_seconds=seconds)


def link_url(base_url: str, code: str) -> str:
    return f"{base_url.rstrip('/')}/?access={code}"


def text_id_of(key: str) -> str:
    """Identifies the text of a key, as `KeyHash.text_id` does."""
    return KeyHash(sha256=key_hash(key), created_at_ms=0).text_id


def _verified(signer: Signer, owner: bytes, text: str, now: int) -> _Signed | None:
    if len(text) > _COOKIE_BYTES_MAX:
        return None
    try:
        content = _decode(signer.verify(owner, text))
    except (SignatureInvalid, msgspec.DecodeError, UnicodeEncodeError):
        return None
    return content if content.expires_at_ms > now else None


def session_cookie(request: Request) -> str | None:
    return cookie_of(request, COOKIE)


def cookie_of(request: Request, name: str) -> str | None:
    """The value of a cookie; None if the request does not have it, or has it twice."""
    given = request.headers.get(b"cookie")
    if given is None:
        return None
    pairs = [pair.strip().partition("=") for pair in given.decode("latin-1").split(";")]
    found = [value for one, _, value in pairs if one == name]
    return found[0] if len(found) == 1 and found[0] else None


def set_cookie(
    request: Request, name: str, value: str, seconds: int, public_url: str | None, same_site: str
) -> tuple[bytes, bytes]:
    """The header that stores a cookie, or with `seconds` 0 removes it. It is `Secure` if the client uses TLS."""
    is_tls = request.scheme == "https" or (public_url or "").startswith("https:")
    is_tls = is_tls or (request.header(b"x-forwarded-proto") or "").lower() == "https"
    text = f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{'; Secure' if is_tls else ''}"
    return b"set-cookie", text.encode()


def check_same_origin(request: Request, *, is_websocket: bool = False) -> None:
    """Raises Forbidden if a page of another origin made the request, or, if it changes something, may have made it.

    Browsers send `Sec-Fetch-Site` to HTTPS and loopback addresses only; elsewhere `Origin` must name the host of the request.
    """
    site, is_change = request.headers.get(b"sec-fetch-site"), request.method not in _SAFE_METHODS or is_websocket
    if site is not None:
        is_same = site == b"same-origin" or (site == b"none" and not is_change)
    else:
        origin, host = request.headers.get(b"origin"), request.headers.get(b"host", b"")
        is_same = not is_change if origin is None else origin.lower().partition(b"://")[2] == host.lower()
    if not is_same:
        raise Forbidden("requests with the session cookie must come from a page of this origin; other clients send the key")
