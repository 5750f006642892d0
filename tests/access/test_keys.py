"""Texts of keys: format, checksum and hash."""

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.access.keys import (
    INVITE_PREFIX,
    KEY_PREFIXES,
    PLATFORM_PREFIX,
    TENANT_PREFIX,
    _checksum,
    is_same_hash,
    key_hash,
    key_id_of,
    new_key,
)
from tests.gateway import Gateway

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY = "pr_live_0123456789abcdefABCDEFGHIJKLMNOPQRSTUVWXYZ0123450pkrX5"


def forged(key_id: str, prefix: str = TENANT_PREFIX) -> str:
    """A text of the right length with a valid checksum, which is easy to forge."""
    text = prefix + key_id + "A" * 32
    return text + _checksum(text)


@pytest.mark.parametrize("prefix", [TENANT_PREFIX, PLATFORM_PREFIX, INVITE_PREFIX])
def test_a_key_has_its_prefix_then_its_id_then_190_bits_then_a_checksum(prefix: str) -> None:
    assert re.fullmatch(prefix + r"[0-9A-Za-z]{16}[0-9A-Za-z]{32}[0-9A-Za-z]{6}", new_key(prefix))


def test_kinds_of_keys_have_different_prefixes() -> None:
    assert new_key().startswith("pr_live_")
    assert new_key(PLATFORM_PREFIX).startswith("pr_admin_")
    assert new_key(INVITE_PREFIX).startswith("pr_invite_")


def test_no_two_keys_are_the_same() -> None:
    assert len({new_key() for _ in range(1000)}) == 1000


def test_every_character_of_a_key_varies() -> None:
    keys = [new_key()[len(TENANT_PREFIX) :] for _ in range(300)]
    assert all(len({key[place] for key in keys}) >= 16 for place in range(48))


def test_the_id_is_in_the_text_and_stays_in_a_rotation() -> None:
    text = new_key()
    key_id = key_id_of(text)
    assert key_id is not None and text[8:24] == key_id
    rotated = new_key(key_id=key_id)
    assert key_id_of(rotated) == key_id and rotated != text


def test_a_key_of_an_earlier_version_is_valid() -> None:
    """Keys stay in use for years: the checksum must not change."""
    assert key_id_of(KEY) == "0123456789abcdef"


@given(st.sampled_from(KEY_PREFIXES))
def test_a_new_key_is_valid(prefix: str) -> None:
    assert key_id_of(new_key(prefix)) is not None


@given(st.data())
def test_a_key_with_one_wrong_character_is_invalid(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(KEY) - 1))
    other = data.draw(st.sampled_from(BASE62).filter(lambda char: char != KEY[place]))
    assert key_id_of(KEY[:place] + other + KEY[place + 1 :]) is None


@given(st.text())
def test_other_texts_are_invalid(text: str) -> None:
    assert key_id_of(text) is None
    assert key_id_of(TENANT_PREFIX + text) is None


def test_a_truncated_or_extended_key_is_invalid() -> None:
    assert not any(key_id_of(KEY[:length]) for length in range(len(KEY)))
    assert key_id_of(KEY + "0") is None and key_id_of(" " + KEY) is None


def test_a_key_of_another_kind_is_invalid() -> None:
    assert key_id_of(new_key(INVITE_PREFIX)) is None
    assert key_id_of(new_key(), (INVITE_PREFIX,)) is None


@given(st.text(st.characters(max_codepoint=0x2FF, categories=["L", "N", "P", "Z", "S", "Cc"]), min_size=16, max_size=16))
@example("aaaaaaa bbbbbbbb")
@example("\r\nPUB a 0\r\n\r\nxy")
@example("a.b.c.d.e.f.g.>>")
def test_an_id_with_other_characters_is_invalid(key_id: str) -> None:
    """The id becomes part of a NATS subject, where spaces and line ends would be part of the protocol."""
    assert key_id_of(forged(key_id)) == (key_id if set(key_id) <= set(BASE62) else None)


def test_a_secret_with_other_characters_is_invalid() -> None:
    text = TENANT_PREFIX + "A" * 16 + "B" * 31 + "\n"
    assert key_id_of(text + _checksum(text)) is None


@pytest.mark.parametrize("key_id", ["aaaaaaa bbbbbbbb", "aaaaaaaa\tbbbbbbb", "a.a.a.a.a.a.a.>>"])
async def test_a_forged_key_does_not_reach_the_engine(gateway: Gateway, key_id: str) -> None:
    """An id with a line end would break the connection to the engine."""
    restored: list[str] = []
    remove = gateway.node.platform.connection.on_reconnect(lambda: restored.append(key_id))
    try:
        (await gateway.with_key(forged(key_id)).get("/v1/whoami")).problem(401, "unauthenticated")
        claim = {"code": forged(key_id.replace("\t", "\n"), INVITE_PREFIX), "tenant": "anyone"}
        (await gateway.anonymous.post("/api/control/claim", claim)).problem(404, "invite-not-found")
        await gateway.node.platform.connection.request("$JS.API.INFO")  # answered after everything that was sent before
    finally:
        remove()
    assert gateway.node.platform.connection.is_up and not restored


def test_the_hash_of_a_key_is_the_sha256_of_its_text() -> None:
    assert key_hash(KEY) == hashlib.sha256(KEY.encode()).hexdigest()
    assert key_hash("\xe9\u20ac") == hashlib.sha256("\xe9\u20ac".encode()).hexdigest()


@given(st.text("0123456789abcdef", max_size=4), st.text("0123456789abcdef", max_size=4))
def test_hashes_are_compared_for_equality(one: str, other: str) -> None:
    assert is_same_hash(one, other) == (one == other)
