"""Everything that is stored, signed or handed out, read back after somebody has had their hands on it: a value that is right, or
the error that its module names. No other exception, and nothing of one tenant's ever opens as another's.

`HYPOTHESIS_PROFILE=thorough pytest tests/faults/test_bad_input.py --timeout 3600` is the long run.
"""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import jwt
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.access.jwts import JwtSecrets
from postroad.access.keys import key_id_of, new_key
from postroad.access.records import KeyHash, KeyRecord, SecretRecord
from postroad.access.tokens import Tokens
from postroad.api.access import NewToken
from postroad.api.insights import Grain
from postroad.api.reports import reports
from postroad.api.streams import StreamNotFound
from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.http.request import Request
from postroad.http.routing import Route
from postroad.insights.results import Results, read_results
from postroad.insights.rules import Position, Span, decode_cursor, encode_cursor, is_begun, parts
from postroad.kernel.errors import InvalidParameter, InvalidRequest, MalformedJson
from postroad.kernel.identity import ALL_SCOPES, Caller, Credential, Scope
from postroad.kernel.matching import pattern
from postroad.kernel.names import escape, queue_name, stream_id, tenant_id, unescape
from postroad.pipeline.frame_parser import MESSAGE, Message, lines_of, lines_schema, read
from postroad.queues.records import Receipt, decode_dead_letter, decode_failure, decode_marker, decode_message
from postroad.sessions.rules import session_id, source_id
from postroad.stream_subscriptions.rules import stream_path, subscription_id
from postroad.streams import protocol_headers
from postroad.streams.content import json_data, json_elements, split_json
from postroad.streams.cursors import cursor_after, parse_cursor
from postroad.streams.offsets import NOW, offset_text, parse_position
from postroad.streams.records import decode_checkpoint, decode_record
from postroad.streams.rules import check_seq
from postroad.telemetry.frames import pack, unpack
from tests.faults.fuzz import bounded, finished, nearly, odd_bytes, odd_texts, outcome, values
from tests.insights.results import dead_letters, health, latency, usage

pytestmark = pytest.mark.slow

PLATFORM_KEYS = ("a platform key of these tests, long enough", "the platform key that there was before it")
NOW_MS = 1_790_000_000_000

# Telemetry

STORED = datetime(2026, 11, 1, 13, 0, 0, tzinfo=UTC)
_EVENT = {
    "event": "queue.purged",
    "version": 1,
    "event_id": "e1",
    "timestamp": "2026-11-01T12:59:00.000Z",
    "tenant": "acme",
    "queue": "orders",
    "count": 3,
    "key_id": "k",
}
_NAMES = st.sampled_from([*_EVENT, "is_deleted", "request_id", "other"])
_EVENTS = st.dictionaries(_NAMES, values, max_size=2).map(lambda more: msgspec.json.encode({**_EVENT, **more}))
_LINES = _EVENTS | nearly(_EVENTS) | odd_bytes
_FRAMES = st.lists(_LINES, max_size=5).map(b"\n".join) | odd_bytes


def message(data: bytes, frame: str | None = "1") -> Message:
    return Message("JOBS", 7, STORED, "acme", frame, data, STORED - timedelta(hours=1))


@bounded
@given(odd_bytes)
def test_a_frame_is_its_lines_whatever_they_are(data: bytes) -> None:
    assert b"".join(unpack(data)) == data.replace(b"\n", b"")
    assert list(unpack(pack(list(unpack(data))))) == list(unpack(data))


@bounded
@given(_FRAMES, st.sampled_from(["1", "1", "1", "2", None]))
def test_every_line_of_a_frame_is_an_event_or_has_a_fault(data: bytes, frame: str | None) -> None:
    lines = lines_of(message(data, frame))
    if frame != "1":
        assert [(line.number, line.fault, line.raw) for line in lines] == [(0, "unknown-frame", data)]
        return
    assert [line.number for line in lines] == [number for number, raw in enumerate(data.split(b"\n")) if raw]
    assert all((line.event is None) == (line.fault is not None) for line in lines)
    assert all(line.event.tenant == "acme" for line in lines if line.event is not None)


@bounded
@given(st.lists(_FRAMES, min_size=1, max_size=4))
def test_every_line_of_a_batch_becomes_one_row(frames: list[bytes]) -> None:
    rows = [("JOBS", number, STORED, "acme", "1", data) for number, data in enumerate(frames)]
    batch = pa.RecordBatch.from_pylist([dict(zip(MESSAGE.names, row, strict=True)) for row in rows], schema=MESSAGE)
    found = list(read([batch]))
    assert all(one.schema == lines_schema(table) for table, one in found)
    places = [(row["sequence"], row["line"]) for _, one in found for row in one.to_pylist()]
    sent = [(number, line) for number, data in enumerate(frames) for line, raw in enumerate(data.split(b"\n")) if raw]
    assert sorted(places) == sent


# Receipts and whatever else is sealed

_RECEIPT = Receipt(1, 2, 3, 4, 5, 6, "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002")
_SEALER = Signer(PLATFORM_KEYS, "receipt")
_OWNER, _OTHER = b"acme\0orders\0one", b"other\0orders\0one"
_SEALED = _SEALER.sign(_OWNER, _RECEIPT.to_bytes())


def opened(text: str, owner: bytes = _OWNER) -> Receipt | None:
    return outcome(lambda: Receipt.from_bytes(_SEALER.verify(owner, text)), SignatureInvalid, ValueError)


@bounded
@given(odd_texts | nearly(st.just(_SEALED.encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_receipt_opens_as_what_it_was_or_not_at_all(text: str) -> None:
    assert opened(text) in (None, _RECEIPT)
    assert opened(text, _OTHER) is None
    assert outcome(lambda: Signer(PLATFORM_KEYS, "stream-token").verify(_OWNER, text), SignatureInvalid) is None, (
        "nor as another kind"
    )


def test_the_receipt_itself_opens_for_its_queue_alone() -> None:
    assert opened(_SEALED) == _RECEIPT
    assert opened(_SEALED, _OTHER) is None
    assert opened(_SEALED, b"acme\0orders\0two") is None


@bounded
@given(st.binary(max_size=120) | nearly(st.just(_RECEIPT.to_bytes())))
def test_bytes_are_a_receipt_of_this_version_or_a_value_error(body: bytes) -> None:
    found = outcome(lambda: Receipt.from_bytes(body), ValueError)
    assert found is None or found.to_bytes() == body


@bounded
@given(
    odd_texts
    | nearly(st.just(SecretCipher(PLATFORM_KEYS).encrypt("a", "secret").encode())).map(lambda raw: raw.decode("latin-1"))
)
def test_a_vault_unlocks_what_it_locked_or_nothing(text: str) -> None:
    vault = SecretCipher(PLATFORM_KEYS)
    assert outcome(lambda: vault.decrypt("a", text), DecryptionFailed) in (None, "secret")
    assert outcome(lambda: vault.decrypt("b", text), DecryptionFailed) is None


@bounded
@given(odd_texts | nearly(st.just(new_key().encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_text_has_the_form_of_a_key_or_none(text: str) -> None:
    found = key_id_of(text)
    assert found is None or (len(found) == 16 and found.isascii() and found.isalnum())


# Stream tokens and JWTs: a directory of two tenants, with a key each


def _key(tenant: str) -> KeyRecord:
    hashes = (KeyHash(sha256=tenant, created_at_ms=1),)
    more: dict[str, Any] = {"scopes": ALL_SCOPES, "hashes": hashes, "created_at_ms": 1, "updated_at_ms": 1}
    return KeyRecord(id=f"key-of-{tenant}", tenant=tenant, name="k", **more)


class TwoTenants:
    keys: ClassVar = {f"key-of-{tenant}": _key(tenant) for tenant in ("acme", "other")}

    async def key(self, key_id: str) -> KeyRecord | None:
        return self.keys.get(key_id)

    async def is_enabled(self, name: str) -> bool:
        return name in ("acme", "other")

    def end_watches(self, _key_id: str) -> None: ...


async def _nothing(_request: Request) -> Any: ...


def _tokens() -> Tokens:
    tokens = Tokens(cast(Any, TwoTenants()), Signer(PLATFORM_KEYS, "stream-token"), cast(Any, None), lambda: NOW_MS)
    tokens.set_resources([Route("GET", "/v1/stream/{stream}", _nothing, Scope.READ, "", "", resource="stream/{stream}")], ())
    return tokens


_CALLER = Caller("acme", "key-of-acme", frozenset(ALL_SCOPES))
_TOKEN = _tokens().issue(_CALLER, NewToken(resource="stream/a"))[0]


@bounded
@given(odd_texts | nearly(st.just(_TOKEN.encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_stream_token_is_of_the_tenant_it_was_made_for_or_no_good(text: str) -> None:
    found = finished(_tokens().authenticate(text, ("stream/a",)))
    assert found is None or (found.tenant, found.key_id, found.scopes) == ("acme", "key-of-acme", frozenset({Scope.READ}))
    assert finished(_tokens().authenticate(text, ("stream/b",))) is None
    assert finished(_tokens().authenticate(text, ("stream/a",), "other")) is None


def test_the_token_itself_is_good_for_what_it_was_made_for() -> None:
    assert finished(_tokens().authenticate(_TOKEN, ("stream/a",))) is not None


_SECRET, _OTHERS = "a secret of the tenant acme, long enough", "a secret of the other tenant, also long enough"


def _jwts(**secrets: str) -> JwtSecrets:
    """The tenants' secrets, as a table tells of them."""
    listeners: list[Any] = []
    vault = SecretCipher(PLATFORM_KEYS)
    table = SimpleNamespace(on_change=listeners.append)
    made = JwtSecrets(cast(Any, table), cast(Any, TwoTenants()), vault, cast(Any, None), lambda: NOW_MS)
    for tenant, secret in secrets.items():
        locked = vault.encrypt(f"jwt-secret {tenant} s-{tenant}", secret)
        record = SecretRecord(id=f"s-{tenant}", tenant=tenant, name="s", locked=locked, created_at_ms=1)
        listeners[0](f"{tenant}.{record.id}", record)
    return made


_CLAIMS = {"sub": "ada", "scope": "read", "exp": NOW_MS // 1000 + 600}
_JWT = jwt.encode(_CLAIMS, _SECRET, "HS256")
_CLAIM_NAMES = st.sampled_from([*_CLAIMS, "nbf", "iat", "iss", "aud", "jti", "stream_id"])
_HEADS = st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit", "b64", "jku", "x"]), values, max_size=3)


def is_acme(found: Caller | None) -> bool:
    return found is None or (found.tenant, found.credential, found.key_id) == ("acme", Credential.JWT, "jwt:s-acme")


@bounded
@given(odd_texts | nearly(st.just(_JWT.encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_jwt_is_of_the_tenant_that_signed_it_or_no_good(text: str) -> None:
    jwts = _jwts(acme=_SECRET, other=_OTHERS)
    assert is_acme(finished(jwts.authenticate(text, "acme")))
    assert finished(jwts.authenticate(text, "other")) is None


@bounded
@given(st.dictionaries(_CLAIM_NAMES, values, max_size=4), _HEADS)
def test_whatever_a_tenant_claims_in_a_jwt_stays_its_own(claims: dict[str, Any], head: dict[str, Any]) -> None:
    algorithm = jwt.PyJWS()
    payload = json.dumps({**_CLAIMS, **claims}).encode()
    try:
        text = algorithm.encode(payload, _SECRET, "HS256", headers={name: one for name, one in head.items() if name != "alg"})
    except (TypeError, jwt.PyJWTError):  # a head that it will not write, it need not read
        return
    jwts = _jwts(acme=_SECRET, other=_OTHERS)
    assert is_acme(finished(jwts.authenticate(text, "acme")))
    assert finished(jwts.authenticate(text, "other")) is None


@bounded
@given(st.text(min_size=32, max_size=512))
@example("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 somebody@somewhere")
@example("-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----")
def test_any_secret_that_is_taken_can_be_tried(secret: str) -> None:
    try:
        jwts = _jwts(acme=secret)
    except UnicodeEncodeError:  # half a character, which no JSON brings
        return
    assert finished(jwts.authenticate(_JWT, "acme")) is None


def test_the_jwt_itself_is_good() -> None:
    assert finished(_jwts(acme=_SECRET).authenticate(_JWT, "acme")) is not None


# Places: offsets, cursors, Last-Event-ID


@bounded
@given(odd_texts | nearly(st.just(offset_text(77).encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_place_is_a_place_or_an_invalid_parameter(text: str) -> None:
    place = outcome(lambda: parse_position(text), InvalidParameter)
    assert place is None or place is NOW or (isinstance(place, int) and 0 <= place < 2**63)
    cursor = outcome(lambda: parse_cursor(text), InvalidParameter)
    assert cursor is None or cursor < cursor_after(cursor) < 2**63


_CURSOR = encode_cursor(Position(Span(Grain.HOUR, 0, 7_200_000), (3_600_000, "orders", "wait")))


@bounded
@given(odd_texts | nearly(st.just(_CURSOR.encode())).map(lambda raw: raw.decode("latin-1")), st.booleans())
def test_a_cursor_of_a_report_is_one_or_an_invalid_parameter(text: str, has_time: bool) -> None:
    place = outcome(lambda: decode_cursor(text, has_time=has_time), InvalidParameter)
    if place is None or place.asked is None:
        return
    following = list(parts(place.asked, place.after))
    assert len(following) <= 402 * 24
    assert all(isinstance(is_begun(part, place.after), bool) for part in following)


# Names


@bounded
@given(odd_texts)
@pytest.mark.parametrize(
    "check", [tenant_id, queue_name, stream_id, session_id, source_id, subscription_id, stream_path, pattern, check_seq]
)
def test_a_name_is_one_or_an_invalid_parameter(check: Any, text: str) -> None:
    outcome(lambda: check(text), InvalidParameter)


@bounded
@given(odd_texts | nearly(st.just(escape("a.b/c_d:é").encode())).map(lambda raw: raw.decode("latin-1")))
def test_a_token_is_of_one_name_or_of_none(text: str) -> None:
    name = outcome(lambda: unescape(text), ValueError)
    assert name is None or escape(name) == text


# What the engine keeps, which whoever has its password can write to

_MESSAGE = b'{"v":1,"id":"i","job":"j","at":1,"headers":{"a":"b"},"corr":"c","payload":{"a":[1,"\xc3\xa9"]}}'
_STORED = [
    (decode_message, _MESSAGE),
    (decode_dead_letter, b'{"v":1,"reason":"r","attempts":3,"dead_at":1,"message":' + _MESSAGE + b"}"),
    (decode_marker, b'{"v":1,"body":"b","message":"m","job":"j","at":1}'),
    (decode_failure, b'{"v":1,"reason":"r","first_at":1,"last_at":2}'),
    (decode_record, b'{"v":1,"id":"s","content_type":"text/plain","created_at_ms":1,"origin":null}'),
    (decode_checkpoint, b'{"v":1,"born":1,"at":2,"producers":{"p":[1,2]},"last_seq":null}'),
]


@bounded
@given(data=st.data())
@pytest.mark.parametrize(("decode", "good"), _STORED)
def test_what_is_stored_is_read_or_said_to_be_unreadable(decode: Any, good: bytes, data: st.DataObject) -> None:
    assert decode(good) is not None
    outcome(lambda: decode(data.draw(nearly(st.just(good)) | odd_bytes)), ValueError, RecursionError)


_ROWS = [
    ("usage", usage(NOW_MS)),
    ("latency", latency(NOW_MS)),
    ("health", health()),
    ("dead-letters", dead_letters(NOW_MS)),
]


@bounded
@given(data=st.data())
@pytest.mark.parametrize(("name", "row"), _ROWS)
def test_results_with_invalid_rows_are_read_without_them(name: str, row: dict[str, Any], data: st.DataObject) -> None:
    [report] = [one for one in reports() if one.name == name]
    head = {"v": 1, "report": name, "tenant": "acme", "day": "20261116", "part": "hour", "batch": 1}
    rows = [row, {**row, data.draw(st.sampled_from(sorted(row))): data.draw(values)}]
    good = msgspec.json.encode({**head, "computedAt": "2026-11-16T12:00:00Z", "rows": rows})
    found = read_results(good, report, "acme")
    assert len(found.rows) + found.dropped == 2
    assert isinstance(read_results(data.draw(nearly(st.just(good)) | odd_bytes), report, "acme"), Results)
    assert read_results(good, report, "other").rows == [], "results of another tenant are not returned"


# Bodies and headers of streams


@bounded
@given(odd_bytes | values.map(msgspec.json.encode) | nearly(st.just(b'[{"a": [1, 2.5]}, "b", null]')))
def test_a_body_is_json_or_malformed(body: bytes) -> None:
    elements = outcome(lambda: json_elements(body), MalformedJson)
    if elements:
        assert split_json(json_data(body)) == elements
    else:
        assert outcome(lambda: json_data(body), InvalidRequest) is None


_HEADERS = [
    b"stream-ttl",
    b"stream-expires-at",
    b"stream-closed",
    b"stream-forked-from",
    b"stream-fork-offset",
    b"stream-fork-sub-offset",
    b"content-type",
    b"producer-id",
    b"producer-epoch",
    b"producer-seq",
]
_HEADER_VALUES = st.binary(max_size=40) | st.sampled_from(
    b"""http://[ //[::1 http://a]b/v1/stream/x /v1/stream/%ff /v1/stream/x 99999999999999999999999 0000000000000000 1_1 true
    9999-12-31T23:59:59Z 0001-01-01T00:00:00+23:59 2030-02-30T00:00:00Z 20300101T000000Z text/\xff a/b;\xe9""".split()
)


@bounded
@given(st.dictionaries(st.sampled_from(_HEADERS), _HEADER_VALUES, max_size=4))
@example({b"stream-forked-from": b"http://["})
def test_headers_of_a_stream_are_understood_or_refused(headers: dict[bytes, bytes]) -> None:
    request = Request("PUT", "/v1/stream/a", "r", headers, {}, cast(Any, None), cast(Any, None))
    made = outcome(lambda: protocol_headers.parse_create(request, "acme", 0), InvalidParameter, StreamNotFound)
    if made is not None and made.content_type is not None:
        assert made.content_type.encode("latin-1").isascii(), "it comes back as a header"
    outcome(lambda: protocol_headers.parse_claim(request), InvalidParameter)
