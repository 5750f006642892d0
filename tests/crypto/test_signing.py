import base64
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from postroad.crypto.signing import SignatureInvalid, Signer, _number

KEY, OTHER = "k" * 32, "o" * 32
SEALER = Signer((KEY,), "receipt")


def raw(sealed: str) -> bytes:
    return base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))


def text(unsealed: bytes) -> str:
    return base64.urlsafe_b64encode(unsealed).rstrip(b"=").decode()


def refuses(sealer: Signer, owner: bytes, sealed: str) -> bool:
    try:
        sealer.verify(owner, sealed)
    except SignatureInvalid:
        return True
    return False


@given(st.binary(), st.binary())
def test_what_was_sealed_opens_for_its_owner(owner: bytes, body: bytes) -> None:
    assert SEALER.verify(owner, SEALER.sign(owner, body)) == body


@given(st.binary(), st.binary(max_size=200))
def test_a_seal_can_stand_in_a_url(owner: bytes, body: bytes) -> None:
    sealed = SEALER.sign(owner, body)
    assert sealed.replace("-", "").replace("_", "").isalnum() and sealed.isascii()


@given(st.binary(), st.binary(), st.data())
def test_any_byte_that_was_altered_breaks_the_seal(owner: bytes, body: bytes, data: st.DataObject) -> None:
    sealed = bytearray(raw(SEALER.sign(owner, body)))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    assert refuses(SEALER, owner, text(bytes(sealed)))


@given(st.binary(), st.binary(), st.binary(min_size=1))
def test_what_was_added_or_cut_off_breaks_the_seal(owner: bytes, body: bytes, more: bytes) -> None:
    sealed = raw(SEALER.sign(owner, body))
    assert refuses(SEALER, owner, text(sealed + more))
    assert refuses(SEALER, owner, text(sealed[:-1]))
    assert refuses(SEALER, owner, text(sealed[: len(sealed) // 2]))


@given(st.binary(), st.binary(), st.binary())
def test_a_seal_opens_for_no_other_owner(owner: bytes, other: bytes, body: bytes) -> None:
    assume(owner != other)
    assert refuses(SEALER, other, SEALER.sign(owner, body))


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_bytes_cannot_be_moved_between_the_owner_and_the_body(owner: bytes, body: bytes) -> None:
    number_and_tag = raw(SEALER.sign(owner, body))[:17]
    assert refuses(SEALER, owner[:-1], text(number_and_tag + owner[-1:] + body))
    assert refuses(SEALER, owner + body[:1], text(number_and_tag + body[1:]))


@given(st.binary(), st.binary())
def test_a_seal_of_another_kind_is_refused(owner: bytes, body: bytes) -> None:
    assert refuses(Signer((KEY,), "token"), owner, SEALER.sign(owner, body))


@given(st.binary(), st.binary())
def test_a_seal_by_another_installation_is_refused(owner: bytes, body: bytes) -> None:
    assert refuses(Signer((OTHER,), "receipt"), owner, SEALER.sign(owner, body))


@given(st.text() | st.text("abcABC-_019+/=", max_size=40))
def test_any_other_text_is_refused(sealed: str) -> None:
    assert refuses(SEALER, b"owner", sealed)


def test_after_a_rotation_old_seals_open_and_new_ones_are_made_with_the_new_key() -> None:
    old = Signer((KEY,), "receipt").sign(b"owner", b"body")
    rotated = Signer((OTHER, KEY), "receipt")
    assert rotated.verify(b"owner", old) == b"body"
    new = rotated.sign(b"owner", b"body")
    assert Signer((OTHER,), "receipt").verify(b"owner", new) == b"body"
    assert refuses(Signer((KEY,), "receipt"), b"owner", new)


def test_once_a_key_is_taken_out_its_seals_no_longer_open() -> None:
    assert refuses(Signer((OTHER,), "receipt"), b"owner", Signer((KEY,), "receipt").sign(b"owner", b"body"))


def test_two_keys_whose_numbers_meet_do_not_hide_each_other() -> None:
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


def test_the_number_does_not_give_the_key_away() -> None:
    assert len(_number(KEY.encode())) == 1
    assert len({_number(bytes([value]) * 32) for value in range(256)}) > 100


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_neither_the_key_nor_the_tag_depends_on_chance(key: str) -> None:
    assert Signer((key,), "receipt").sign(b"o", b"b") == Signer((key,), "receipt").sign(b"o", b"b")


def test_a_seal_that_was_handed_out_by_an_earlier_version_opens() -> None:
    """Receipts live for hours and outlast an upgrade: the format may not change without notice."""
    assert SEALER.sign(b"owner", b"body") == "jqPlesN9h6k-IXRMSG63MbVib2R5"


@pytest.mark.parametrize("number", range(300))
def test_what_is_sealed_does_not_begin_with_a_dash(number: int) -> None:
    """Whatever the platform key: on a command line a dash in front would make an option of it."""
    assert Signer((f"{number:032d}",), "receipt").sign(b"owner", b"body")[0] != "-"
