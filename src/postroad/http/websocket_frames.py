"""WebSocket handshake and outgoing frames (RFC 6455). Pure."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping

from postroad.kernel.errors import Forbidden, MalformedRequest, UpgradeRequired

_VERSION = b"13"
_ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KEY_BYTES = 16
_OFFERED_MAX = 32  # subprotocols

PING = b"\x89\x00"


def text_frame(payload: bytes) -> bytes:
    """One unfragmented text frame. Servers do not mask."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def asks_for_websocket(headers: Mapping[bytes, bytes]) -> bool:
    """True if the request wants to switch to WebSocket and has no body."""
    return (
        headers.get(b"upgrade", b"").strip().lower() == b"websocket"
        and b"upgrade" in [name.strip() for name in headers.get(b"connection", b"").lower().split(b",")]
        and b"transfer-encoding" not in headers
        and headers.get(b"content-length", b"0") == b"0"
    )


def check_handshake(headers: Mapping[bytes, bytes]) -> bytes:
    """The value of `Sec-WebSocket-Accept`. Raises UpgradeRequired for a request that is no handshake or has another version,
    MalformedRequest for an invalid key."""
    if not asks_for_websocket(headers):
        raise _upgrade_required("this path is a WebSocket: connect to it with a WebSocket client over HTTP/1.1")
    if headers.get(b"sec-websocket-version", b"").strip() != _VERSION:
        raise _upgrade_required("the supported version of WebSocket is 13")
    key = headers.get(b"sec-websocket-key", b"").strip()
    try:
        is_valid = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        is_valid = False
    if not is_valid:
        raise MalformedRequest("Sec-WebSocket-Key is not 16 bytes in base64")
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())


def check_origin(headers: Mapping[bytes, bytes], allowed: str, scheme: str) -> None:
    """Browsers send cookies and cached credentials with a handshake from any page. Raises Forbidden for a page of another origin
    than the allowed one and this server."""
    origin = headers.get(b"origin")
    if origin is None or allowed == "*" or origin == allowed.encode():
        return
    if origin.lower() != scheme.encode() + b"://" + headers.get(b"host", b"").lower():
        raise Forbidden("pages of this origin may not connect; POSTROAD_CORS_ORIGIN allows one")


def offered_subprotocols(headers: Mapping[bytes, bytes]) -> list[str]:
    """Raises MalformedRequest."""
    value = headers.get(b"sec-websocket-protocol")
    if value is None:
        return []
    names = [name.strip() for name in value.split(b",")]
    if len(names) > _OFFERED_MAX or not all(_TOKEN.fullmatch(name) for name in names):
        raise MalformedRequest("Sec-WebSocket-Protocol is not a list of names")
    return [name.decode() for name in names]


def _upgrade_required(detail: str) -> UpgradeRequired:
    names = (("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-version", _VERSION.decode()))
    return UpgradeRequired(detail, headers=names)
