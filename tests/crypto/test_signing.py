import base64
import hashlib
import hmac
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from postroad.crypto.signing import SignatureInvalid, Signer, key_number

KEY, OTHER = "k" * 32, "o" * 32
SIGNER = Signer((KEY,), "receipt")


def raw(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def text(decoded: bytes) -> str:
    return base64.urlsafe_b64encode(decoded).rstrip(b"=").decode()


def rejects(signer: Signer, owner: bytes, token: str) -> bool:
    try:
        signer.verify(owner, token)
    except SignatureInvalid:
        return True
    return False


@given(st.binary(), st.binary())
def test_a_token_is_verified_for_its_owner(owner: bytes, body: bytes) -> None:
    assert SIGNER.verify(owner, SIGNER.sign(owner, body)) == body


@given(st.binary(), st.binary())
def test_a_token_has_the_number_of_its_key_a_tag_and_its_body(owner: bytes, body: bytes) -> None:
    """Stored receipts and tokens of earlier versions stay valid."""
    derived = hmac.digest(KEY.encode(), b"postroad seal 1 receipt", hashlib.sha256)
    tag = hmac.digest(derived, len(owner).to_bytes(4, "big") + owner + body, hashlib.sha256)[:16]
    assert raw(SIGNER.sign(owner, body)) == key_number(derived) + tag + body


@given(st.binary(), st.binary(max_size=200))
def test_a_token_is_url_safe(owner: bytes, body: bytes) -> None:
    token = SIGNER.sign(owner, body)
    assert token.replace("-", "").replace("_", "").isalnum() and token.isascii()


@given(st.binary(), st.binary(), st.data())
def test_an_altered_byte_invalidates_a_token(owner: bytes, body: bytes, data: st.DataObject) -> None:
    token = bytearray(raw(SIGNER.sign(owner, body)))
    place = data.draw(st.integers(0, len(token) - 1))
    token[place] ^= data.draw(st.integers(1, 255))
    assert rejects(SIGNER, owner, text(bytes(token)))


@given(st.binary(), st.binary(), st.binary(min_size=1))
def test_added_or_removed_bytes_invalidate_a_token(owner: bytes, body: bytes, more: bytes) -> None:
    token = raw(SIGNER.sign(owner, body))
    assert rejects(SIGNER, owner, text(token + more))
    assert rejects(SIGNER, owner, text(token[:-1]))
    assert rejects(SIGNER, owner, text(token[: len(token) // 2]))


@given(st.binary(), st.binary(), st.binary())
def test_a_token_of_another_owner_is_rejected(owner: bytes, other: bytes, body: bytes) -> None:
    assume(owner != other)
    assert rejects(SIGNER, other, SIGNER.sign(owner, body))


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_bytes_cannot_be_moved_between_the_owner_and_the_body(owner: bytes, body: bytes) -> None:
    number_and_tag = raw(SIGNER.sign(owner, body))[:17]
    assert rejects(SIGNER, owner[:-1], text(number_and_tag + owner[-1:] + body))
    assert rejects(SIGNER, owner + body[:1], text(number_and_tag + body[1:]))


@given(st.binary(), st.binary())
def test_a_token_of_another_kind_is_rejected(owner: bytes, body: bytes) -> None:
    assert rejects(Signer((KEY,), "token"), owner, SIGNER.sign(owner, body))


@given(st.binary(), st.binary())
def test_a_token_of_another_installation_is_rejected(owner: bytes, body: bytes) -> None:
    assert rejects(Signer((OTHER,), "receipt"), owner, SIGNER.sign(owner, body))


@given(st.text() | st.text("abcABC-_019+/=", max_size=40))
def test_any_other_text_is_rejected(token: str) -> None:
    assert rejects(SIGNER, b"owner", token)


def test_after_a_rotation_old_tokens_are_valid_and_new_ones_use_the_new_key() -> None:
    old = Signer((KEY,), "receipt").sign(b"owner", b"body")
    rotated = Signer((OTHER, KEY), "receipt")
    assert rotated.verify(b"owner", old) == b"body"
    new = rotated.sign(b"owner", b"body")
    assert Signer((OTHER,), "receipt").verify(b"owner", new) == b"body"
    assert rejects(Signer((KEY,), "receipt"), b"owner", new)


def test_tokens_of_a_removed_key_are_rejected() -> None:
    assert rejects(Signer((OTHER,), "receipt"), b"owner", Signer((KEY,), "receipt").sign(b"owner", b"body"))


def test_two_keys_of_the_same_number_both_verify() -> None:
    first = Signer((KEY,), "receipt")
    twin = next(
        candidate
        for number in itertools.count()
        if Signer((candidate := f"{number:032}",), "receipt")._keys[0][0] == first._keys[0][0]
    )
    second = Signer((twin,), "receipt")
    for keys in ((KEY, twin), (twin, KEY)):
        both = Signer(keys, "receipt")
        assert both.verify(b"owner", first.sign(b"owner", b"1")) == b"1"
        assert both.verify(b"owner", second.sign(b"owner", b"2")) == b"2"


def test_the_key_number_is_one_byte_of_a_hash() -> None:
    assert len(key_number(KEY.encode())) == 1
    assert len({key_number(bytes([value]) * 32) for value in range(256)}) > 100


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_signing_is_deterministic(key: str) -> None:
    assert Signer((key,), "receipt").sign(b"o", b"b") == Signer((key,), "receipt").sign(b"o", b"b")


def test_the_token_format_is_stable_across_versions() -> None:
    """Receipts are valid for hours, and across an upgrade."""
    assert SIGNER.sign(b"owner", b"body") == "jqPlesN9h6k-IXRMSG63MbVib2R5"


def test_a_token_does_not_begin_with_a_dash() -> None:
    """For any platform key: a command line would parse it as an option."""
    tokens = [Signer((f"{number:032d}",), "receipt").sign(b"owner", b"body") for number in range(300)]
    assert not [token for token in tokens if token[0] == "-"]
