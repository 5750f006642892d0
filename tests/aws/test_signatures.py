"""Signatures: requests that botocore signs are accepted, and altered ones are not."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from postroad.aws.errors import AwsError
from postroad.aws.query_protocol import parse_form
from postroad.aws.signatures import (
    SignedRequest,
    check_claim,
    header_claim,
    is_signed,
    query_claim,
    signing_key,
)

SECRET = "s" * 40
KEY = BotoCredentials("PRAK0123456789abcdef", SECRET)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HEADER = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)


def verified(request: SignedRequest, *, is_presigned: bool = False, service: str = "sqs") -> bool:
    """Whether the request is accepted."""
    try:
        if is_presigned:
            claim = query_claim(parse_form(request.query.encode()))
        else:
            claim = header_claim(request.headers[b"authorization"].decode("latin-1"), request.headers)
        check_claim(claim, service, request.headers, time.time())
    except AwsError:
        return False
    return is_signed(claim, signing_key(SECRET, claim.date, claim.region, claim.service), request)


def as_received(request: AWSRequest, method: str, body: bytes) -> SignedRequest:
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    headers = {name.lower().encode(): _bytes(value) for name, value in prepared.headers.items()}
    headers.setdefault(b"host", parts.netloc.encode())
    return SignedRequest(method, parts.path or "/", parts.query, headers, body)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def signed(
    method: str = "POST", path: str = "/", body: bytes = b"{}", headers: Mapping[str, str] | None = None, params: Any = None
) -> SignedRequest:
    request = AWSRequest(method, f"http://mq.example.com:8080{path}", dict(headers or {}), body, params or {})
    SigV4Auth(KEY, "sqs", "eu-west-1").add_auth(request)
    return as_received(request, method, body)


def presigned(path: str = "/", expires: int = 60, params: Any = None) -> SignedRequest:
    request = AWSRequest("GET", f"http://mq.example.com:8080{path}", params=params or {})
    SigV4QueryAuth(KEY, "sqs", "eu-west-1", expires).add_auth(request)
    return as_received(request, "GET", b"")


@given(body=st.binary(max_size=200), value=HEADER, path=st.lists(HEADER, max_size=3))
def test_requests_that_botocore_signs_are_verified(body: bytes, value: str, path: list[str]) -> None:
    from urllib.parse import quote

    joined = "/" + "/".join(quote(part, safe="") for part in path)
    assert verified(signed(path=joined, body=body, headers={"X-Amz-Target": value, "X-Other": f"{value}  {value}"}))


@given(params=st.dictionaries(st.text("abcXYZ-_.~ /+&=%ü", min_size=1, max_size=8), TEXT, max_size=4))
def test_query_strings_that_botocore_signs_are_verified(params: dict[str, str]) -> None:
    assert verified(signed("GET", body=b"", params=params))
    assert verified(presigned(params=params), is_presigned=True)


def replaced(request: SignedRequest, **changes: Any) -> SignedRequest:
    fields = {name: getattr(request, name) for name in ("method", "path", "query", "headers", "body")}
    return SignedRequest(**{**fields, **changes})


def test_any_altered_part_is_refused() -> None:
    request = signed(body=b'{"a": 1}', headers={"X-Amz-Target": "AmazonSQS.SendMessage"}, path="/1/q?a=b")
    assert verified(request)
    assert not verified(replaced(request, method="GET"))
    assert not verified(replaced(request, path="/1/r"))
    assert not verified(replaced(request, query="a=c"))
    assert not verified(replaced(request, query="a=b&c="))
    for index in range(len(request.body)):
        altered = bytearray(request.body)
        altered[index] ^= 1
        assert not verified(replaced(request, body=bytes(altered)))
    for name, value in request.headers.items():
        if name not in (b"content-length",):
            assert not verified(replaced(request, headers={**request.headers, name: value + b"0"})), name
    assert not verified(replaced(request, headers={**request.headers, b"x-amz-extra": b"1"}))
    assert not verified(request, service="sns")


def test_every_altered_character_of_the_authorization_is_refused() -> None:
    request = signed()
    text = request.headers[b"authorization"]
    assert verified(request)
    for index in range(len(text)):
        altered = bytearray(text)
        altered[index] = altered[index] ^ 1
        found = replaced(request, headers={**request.headers, b"authorization": bytes(altered)})
        # The access key id is no part of the signature: it chooses the secret.
        assert (
            not verified(found) or b"PRAK" not in bytes(altered) or bytes(altered)[: text.index(b"/")] != text[: text.index(b"/")]
        )


def test_every_altered_parameter_of_a_presigned_url_is_refused() -> None:
    request = presigned(params={"Action": "ListQueues"})
    assert verified(request, is_presigned=True)
    for part in request.query.split("&"):
        name, _, value = part.partition("=")
        wrong = request.query.replace(part, f"{name}={value[:-1]}{'1' if value[-1] != '1' else '2'}")
        assert not verified(replaced(request, query=wrong), is_presigned=True), name


@pytest.mark.parametrize("expires", [0, 604_801])
def test_a_presigned_url_is_valid_for_at_most_seven_days(expires: int) -> None:
    assert verified(presigned(expires=604_800), is_presigned=True)
    assert not verified(presigned(expires=expires), is_presigned=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AWS4-HMAC-SHA256", "malformed"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c/sqs/aws4_request", "requires"),
        ("AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=" + "0" * 64, "form"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=" + "0" * 64, "form"),
        ("AWS4-HMAC-SHA256 Credential=a/20260101/c/sqs/aws4_request, SignedHeaders=host, Signature=0", "X-Amz-Date"),
        ("AWS4-HMAC-SHA256 Credential=a/20260101/c/sqs/aws4_request, SignedHeaders=b;a, Signature=" + "0" * 64, "order"),
    ],
)
def test_an_incomplete_signature(text: str, message: str) -> None:
    with pytest.raises(AwsError, match=message) as caught:
        header_claim(text, {b"x-amz-date": b"20260101T000000Z"})
    assert caught.value.code == "IncompleteSignature"


@pytest.mark.parametrize(("seconds", "is_valid"), [(0, True), (890, True), (-890, True), (910, False), (-910, False)])
def test_the_date_must_be_within_15_minutes(seconds: int, is_valid: bool) -> None:
    request = signed()
    claim = header_claim(request.headers[b"authorization"].decode(), request.headers)
    try:
        check_claim(claim, "sqs", request.headers, claim.signed_at + seconds)
        assert is_valid
    except AwsError as error:
        assert error.code == "SignatureDoesNotMatch" and not is_valid
