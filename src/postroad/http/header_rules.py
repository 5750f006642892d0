"""Headers of a request that a proxy could read in another way than Postroad does. Pure."""

from collections.abc import Mapping, Sequence

from postroad.kernel.errors import MalformedRequest

# Two values would let a proxy and Postroad read one request in two ways.
_SINGLE_HEADERS = (b"host", b"authorization", b"x-postroad-tenant", b"content-length", b"transfer-encoding", b"content-type")


def check_headers(given: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes], version: str) -> None:
    """Raises MalformedRequest if a proxy could see another request. `headers`: those that are given, by name."""
    if len(headers) != len(given):
        names = [name for name, _ in given]
        repeated = next((name for name in _SINGLE_HEADERS if names.count(name) > 1), None)
        if repeated is not None:
            raise MalformedRequest(f"the header {repeated.decode()} is repeated")
    if b"host" not in headers and version != "1.0":
        raise MalformedRequest("the header host is missing")
    if b"transfer-encoding" in headers:
        if headers[b"transfer-encoding"].lower() != b"chunked":
            raise MalformedRequest("the only supported transfer-encoding is chunked")
        if b"content-length" in headers:
            raise MalformedRequest("the request has both content-length and transfer-encoding")
