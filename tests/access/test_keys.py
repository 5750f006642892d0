import hashlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.access.keys import PLATFORM_PREFIX, TENANT_PREFIX, KeyRecord, key_hash, looks_like_key, new_key
from postroad.kernel.caller import ALL_SCOPES

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY = "pr_live_4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4fZ1ObAZ4"


@pytest.mark.parametrize("prefix", [TENANT_PREFIX, PLATFORM_PREFIX])
def test_a_key_has_its_prefix_then_256_bits_then_a_checksum(prefix: str) -> None:
    assert re.fullmatch(prefix + r"[0-9A-Za-z]{43}[0-9A-Za-z]{6}", new_key(prefix))


def test_the_two_kinds_of_key_can_be_told_apart() -> None:
    assert new_key().startswith("pr_live_")
    assert new_key(PLATFORM_PREFIX).startswith("pr_admin_")


def test_no_two_keys_are_the_same() -> None:
    assert len({new_key() for _ in range(1000)}) == 1000


def test_every_character_of_a_key_varies() -> None:
    keys = [new_key()[len(TENANT_PREFIX) :] for _ in range(300)]
    assert all(len({key[place] for key in keys}) >= (16 if place else 2) for place in range(43))


@given(st.sampled_from([TENANT_PREFIX, PLATFORM_PREFIX]))
def test_a_new_key_looks_like_one(prefix: str) -> None:
    assert looks_like_key(new_key(prefix))


@given(st.data())
def test_a_key_with_one_wrong_character_does_not_look_like_one(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(KEY) - 1))
    other = data.draw(st.sampled_from(BASE62).filter(lambda char: char != KEY[place]))
    assert looks_like_key(KEY)
    assert not looks_like_key(KEY[:place] + other + KEY[place + 1 :])


@given(st.text())
def test_other_texts_do_not_look_like_keys(text: str) -> None:
    assert not looks_like_key(text)
    assert not looks_like_key(TENANT_PREFIX + text)


def test_a_key_that_is_cut_off_or_too_long_does_not_look_like_one() -> None:
    key = new_key()
    assert not any(looks_like_key(key[:length]) for length in range(len(key)))
    assert not looks_like_key(key + "0") and not looks_like_key(" " + key)


def test_the_hash_of_a_key_is_the_sha256_of_its_text() -> None:
    key = new_key()
    assert key_hash(key) == hashlib.sha256(key.encode()).hexdigest()
    assert key_hash("\xe9\u20ac") == hashlib.sha256("\xe9\u20ac".encode()).hexdigest()


def test_the_stored_form_of_a_key_stays_readable() -> None:
    """What an earlier version has stored: a change of the format must still read it."""
    stored = (
        b'{"v":1,"id":"01a1","tenant":"acme","name":"first key","scopes":["publish","consume","read","write","admin"],'
        b'"isEnabled":true,"createdAtMs":5,"expiresAtMs":null}'
    )
    record = msgspec.json.decode(stored, type=KeyRecord)
    assert record == KeyRecord(id="01a1", tenant="acme", name="first key", scopes=ALL_SCOPES, created_at_ms=5)
    assert msgspec.json.encode(record) == stored
