"""Protection of an open installation, which needs no credentials, against web pages that the machine's user visits.

A page can make a browser send requests to loopback addresses, and DNS rebinding makes a page's own host name resolve to one. The
browser names the host in `Host` and the page in `Origin`.
"""

import re
from collections.abc import Mapping

from postroad.kernel.errors import Forbidden, MisdirectedRequest

_HOST = rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?"
_LOOPBACK_HOST = re.compile(_HOST, re.IGNORECASE)
_LOOPBACK_ORIGIN = re.compile(rb"https?://" + _HOST, re.IGNORECASE)


def check_loopback(headers: Mapping[bytes, bytes], allowed_origin: bytes) -> None:
    """Raises MisdirectedRequest for a host name other than loopback, and Forbidden for a page of another site."""
    host, origin = headers.get(b"host", b""), headers.get(b"origin")
    if not _LOOPBACK_HOST.fullmatch(host):
        raise MisdirectedRequest(
            f"an open installation serves localhost, 127.0.0.1 and [::1] only, not {host[:100].decode('latin-1')!r}; "
            "for other hosts start it without --open, and use keys"
        )
    if origin is not None and origin != allowed_origin and not _LOOPBACK_ORIGIN.fullmatch(origin):
        raise Forbidden("pages of other sites cannot use an open installation; POSTROAD_CORS_ORIGIN allows one of them")
