"""The format of snapshots: what was written is read, and everything else is refused with its reason."""

import gzip
import random

import msgspec
import pytest

from postroad.commands.snapshot_format import RegistryState, SnapshotRefused
from tests.commands.snapshot_cases import (
    BYTES_MAX,
    DAMAGES,
    OTHER_SEAL,
    body_of,
    content_of,
    damaged,
    head,
    read,
    resealed,
    routes,
    services,
    snapshot,
)
from tests.tiers import IS_THOROUGH

CASES = 100_000 if IS_THOROUGH else 1_500


def test_what_was_written_is_read() -> None:
    """Requirements 72, 73, 74, 75, 77, 222"""
    of_routes, of_services = routes(1200, 4), services(700)
    state = read(snapshot(head(), of_routes, of_services, unreadable=(("acme.a.b",), ("acme.z",))), bytes_max=10_000_000)
    assert content_of(state) == {**of_routes, **of_services, "acme.a.b": None}
    assert state.head == head() and state.head.ttl_policy["grants"].stale == 180
    assert (state.unreadable_routes, state.unreadable_services) == (("acme.a.b",), ("acme.z",))
    assert list(state.route_revisions) == sorted(state.route_revisions)
    assert state.route_revisions["acme.a.b"] == 1201 and state.service_revisions["acme.s00003"] == 4


def test_it_is_compressed_json_with_encrypted_secrets_and_ids_of_senders() -> None:
    """Requirements 72, 75, 77"""
    text = gzip.decompress(snapshot())
    document = msgspec.json.decode(text)
    assert set(document) == {"v", "checksum", "seal", "body"} and set(document["body"]["head"]) >= {
        "version_id",
        "generated_at",
        "ttl_policy",
    }
    [[first, *_]] = document["body"]["routes"]
    assert first[0] == "acme.bot.c00000" and [document["body"]["senders"][one] for one in first[3]] == [
        "acme/s00000",
        "acme/s00001",
        "acme/s00002",
    ]
    assert document["body"]["services"][0][0][2]["secrets"][0]["locked"] == "encrypted-0"


def why(content: bytes, **more: int) -> str:
    with pytest.raises(SnapshotRefused) as refused:
        read(content, **more)  # type: ignore[arg-type]
    return refused.value.why


def changed(**fields: object) -> bytes:
    """A snapshot with other fields in its body, sealed again."""
    return resealed(msgspec.json.encode({**msgspec.json.decode(body_of(snapshot())), **fields}))


def route_with(**fields: object) -> bytes:
    """A snapshot with one route, of which some parts are others."""
    names = ("key", "revision", "record", "senders", "created", "details")
    body = msgspec.json.decode(body_of(snapshot(head(), routes(1))))
    entry = dict(zip(names, body["routes"][0][0], strict=True)) | fields
    return resealed(msgspec.json.encode({**body, "routes": [[[entry[name] for name in names]]]}))


def test_refusals_have_their_reason() -> None:
    """Requirements 78, 86"""
    good = snapshot()
    assert why(b"") == why(b"junk") == why(good[:-1]) == why(good + b"x") == "malformed"
    assert why(gzip.compress(b"[]")) == why(gzip.compress(b"{}")) == "malformed"
    assert why(snapshot(seal=OTHER_SEAL)) == "unsealed"
    assert why(good, bytes_max=500) == "too-large"
    assert why(gzip.compress(b" " * (BYTES_MAX + 1))) == "too-large"
    assert why(snapshot(head(records="another"))) == "version"
    assert why(gzip.compress(gzip.decompress(good).replace(b'"v":1', b'"v":2', 1))) == "version"
    flipped = bytearray(gzip.decompress(good))
    flipped[-20] ^= 1
    assert why(gzip.compress(bytes(flipped))) == "malformed", "the checksum"


def test_contents_that_cannot_be_are_refused_even_if_they_are_sealed() -> None:
    """Requirements 81, 87: the same checks before a snapshot is published and when it is loaded."""
    assert isinstance(read(route_with()), RegistryState)
    cases: tuple[dict[str, object], ...] = (
        {"key": "acme.bot.other"},
        {"revision": 0},
        {"revision": 5001},
        {"senders": [0, 1, 3]},
        {"senders": [0, 0, 1]},
        {"senders": [2, 1, 0]},
        {"senders": [-1, 0, 1]},
        {"senders": [0, 1]},
        {"created": [0, 1]},
        {"created": [0, 1, 2**60]},
        {"details": []},
        {"details": [["key", None, None]] * 2},
        {"details": [["key", None, "other"]]},
        {"record": {}},
        {"senders": [*range(3000)], "created": [0] * 3000},
    )
    for fields in cases:
        assert why(route_with(**fields)) == "malformed", fields
    entries = msgspec.json.decode(body_of(snapshot()))["routes"][0]
    assert why(changed(routes=[[*entries, entries[0]]])) == why(changed(routes=[entries[::-1]])) == "malformed"
    assert why(changed(senders=["acme/s00000"] * 22)) == why(changed(routes=[1])) == why(changed(head={})) == "malformed"
    assert why(changed(unreadable_routes=[["acme.bot.c00000", 1]])) == "malformed"
    assert why(changed(services=[[["acme.x", 1, msgspec.json.decode(body_of(snapshot()))["services"][0][0][2]]]])) == "malformed"


def test_damaged_snapshots_are_refused_or_one_that_was_written() -> None:
    """Requirements 87: never a crash, never a grant that the registry did not have then. `HYPOTHESIS_PROFILE=thorough` runs
    100,000 cases."""
    genuine = [snapshot(head(number), routes(20, 3, number), services(number % 7)) for number in range(4)]
    expected = {number: content_of(read(one)) for number, one in enumerate(genuine)}
    random_ = random.Random(21)
    refused = 0
    for _ in range(CASES):
        try:
            state = read(damaged(random_, genuine))
        except SnapshotRefused:
            refused += 1
            continue
        assert content_of(state) == expected[state.head.number]
    assert refused > CASES * 0.8


def test_damaged_contents_with_a_valid_seal_do_not_crash() -> None:
    """Requirements 87: a writer with a defect."""
    body, random_ = body_of(snapshot()), random.Random(22)
    for number in range(CASES // 10):
        damage = DAMAGES[number % len(DAMAGES)]
        try:
            read(resealed(damage(random_, body)))
        except SnapshotRefused:
            continue
