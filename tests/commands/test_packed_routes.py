"""Routes packed in memory: the same records, grants and answers as from records of their own."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands.packed_routes import PackedRoutes, SenderIds
from postroad.commands.records import GrantRecord, RevokedGrant, RouteRecord
from postroad.commands.registry_view import known_route

SOURCES = ("acme/a", "acme/b", "acme/c", "beta/a", "beta/*", "acme/*")


def record(command: str = "post", **fields: Any) -> RouteRecord:
    made = {"tenant": "acme", "service": "bot", "queue": "q", "created_at_ms": 1, "updated_at_ms": 2, **fields}
    return RouteRecord(command=command, **made)


_GRANTS = st.lists(
    st.builds(
        GrantRecord,
        st.sampled_from(SOURCES),
        st.integers(0, 2**45),
        st.sampled_from(["", "key-1", "key-2"]),
        st.none() | st.integers(0, 100),
        st.sampled_from([None, "low", "critical"]),
    ),
    max_size=6,
    unique_by=lambda grant: grant.source,
).map(tuple)
_RECORDS = st.builds(
    record,
    st.sampled_from(["post", "pay", "close"]),
    grants=_GRANTS,
    queue=st.sampled_from(["q", "r"]),
    revoked=st.just((RevokedGrant("acme/a", 5),)),
)


def by_source(found: RouteRecord | None) -> RouteRecord | None:
    """Grants have no order."""
    if found is None:
        return None
    return msgspec.structs.replace(found, grants=tuple(sorted(found.grants, key=lambda one: one.source)))


@given(changes=st.lists(st.tuples(_RECORDS, st.booleans()), max_size=20))
def test_packed_routes_answer_like_records(changes: list[tuple[RouteRecord, bool]]) -> None:
    """Requirements 49, 51: whatever is put, replaced and removed."""
    packed, plain = PackedRoutes(), dict[str, RouteRecord]()
    for one, is_removal in changes:
        if is_removal and one.key in plain:
            del packed[one.key]
            del plain[one.key]
        else:
            packed[one.key] = plain[one.key] = one
        assert len(packed) == len(plain)
        for command in ("post", "pay", "close"):
            key = f"acme.bot.{command}"
            assert (key in packed) == (key in plain)
            assert by_source(packed.get(key)) == by_source(plain.get(key))
            known, expected = packed.known(key), known_route(plain[key]) if key in plain else None
            assert (known is None) == (expected is None)
            for source in (*SOURCES, "beta/z", "gamma/a"):
                if known is not None and expected is not None:
                    assert known.grant(source, 50) == expected.grant(source, 50)
                    assert known.grant(source, 50) == expected.grant(source, 50), "also from memory"
    used = {grant.source for one in plain.values() for grant in one.grants}
    assert set(packed.senders.names().values()) == used, "names of senders without grants are forgotten"


def test_a_route_in_use_never_grants_to_a_sender_with_a_later_number() -> None:
    packed = PackedRoutes()
    packed["acme.bot.post"] = record(grants=(GrantRecord("acme/a", 1),))
    known = packed.known("acme.bot.post")
    assert known is not None
    del packed["acme.bot.post"]
    packed["acme.bot.pay"] = record("pay", grants=(GrantRecord("acme/b", 1),))
    assert known.grant("acme/b", 0) is None and known.grant("acme/a", 0) is None


def test_numbers_of_senders_are_not_used_again() -> None:
    ids = SenderIds(("a",))
    ids.hold(0)
    assert (ids.take("b"), ids.take("a"), ids.take("b")) == (1, 0, 1)
    for number in (1, 1):
        ids.release(number)
    assert ids.find("b") is None and ids.take("b") == 2 and ids.name(0) == "a" and len(ids) == 2


def test_a_record_that_names_a_sender_twice_has_its_last_grant() -> None:
    packed = PackedRoutes()
    packed["acme.bot.post"] = record(grants=(GrantRecord("acme/a", 1), GrantRecord("acme/a", 2, "key", 9)))
    found = packed.get("acme.bot.post")
    assert found is not None and found.grants == (GrantRecord("acme/a", 2, "key", 9),)
    del packed["acme.bot.post"]
    assert len(packed.senders) == 0


def test_names_are_shared() -> None:
    packed = PackedRoutes()
    for command in ("post", "pay"):
        packed[f"acme.bot.{command}"] = record(command, service="".join(["b", "ot"]), grants=(GrantRecord("x/y", 1, "key"),))
    first, second = packed.packed("acme.bot.post"), packed.packed("acme.bot.pay")
    assert first.head.service is second.head.service and first.details is second.details
