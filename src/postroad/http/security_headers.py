"""Security headers of responses, by kind of content.

The API, the documentation pages and the content of tenants share one origin. A page of Postroad may handle keys, so content
that a tenant wrote must never run as a document of this origin. A handler that returns such content, or a page, sets
`Response.security`; the default follows from the media type, so that a media type which is not known here is a download.
"""

import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256

SecurityHeaders = tuple[tuple[bytes, bytes], ...]

API: SecurityHeaders = ((b"x-content-type-options", b"nosniff"),)
CONTENT: SecurityHeaders = (*API, (b"content-security-policy", b"sandbox; default-src 'none'"))
DOWNLOAD: SecurityHeaders = (*CONTENT, (b"content-disposition", b"attachment"))

_INERT_MEDIA = (b"application/json", b"text/plain", b"text/event-stream")


@lru_cache(maxsize=1024)
def default_headers(media: bytes) -> SecurityHeaders:
    """Headers of a response that Postroad itself wrote."""
    return API if _is_inert(media) else DOWNLOAD


@lru_cache(maxsize=1024)
def content_headers(media: bytes) -> SecurityHeaders:
    """Headers of content that a tenant wrote, with a media type that the tenant chose."""
    return CONTENT if _is_inert(media) else DOWNLOAD


def page_headers(page: bytes) -> SecurityHeaders:
    """Headers of an HTML page of Postroad: only its own script and style run, and no other page has a reference to its window."""
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash_of(page, b'style')}; "
        f"script-src {_hash_of(page, b'script')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    )
    return (
        *API,
        (b"content-security-policy", policy.encode()),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
    )


def _is_inert(media: bytes) -> bool:
    """True for types that browsers show as text. Of a list of types, which is not valid, browsers use the last."""
    kind = media.partition(b";")[0].strip().lower()
    return b"," not in media and (kind in _INERT_MEDIA or kind.endswith(b"+json"))


def _hash_of(page: bytes, tag: bytes) -> str:
    found = re.search(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    return f"'sha256-{b64encode(sha256(found[1]).digest()).decode()}'" if found else "'none'"
