"""Ownership of subscriptions by rendezvous hashing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.rendezvous import owner_of

MEMBERS = st.sets(st.text("abcdef-0123456789", min_size=1, max_size=12), min_size=1, max_size=8)


@given(MEMBERS, st.text(min_size=1))
def test_all_processes_agree_whatever_the_order(members: set[str], subscription: str) -> None:
    assert owner_of(subscription, sorted(members)) == owner_of(subscription, sorted(members, reverse=True))
    assert owner_of(subscription, members) in members


@given(MEMBERS, st.text(min_size=1), st.data())
def test_a_member_that_leaves_moves_only_its_own(members: set[str], subscription: str, data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from(sorted(members)))
    before = owner_of(subscription, members)
    after = owner_of(subscription, members - {leaving})
    assert after == before or before == leaving


def test_subscriptions_are_spread_evenly() -> None:
    shares = Counter(owner_of(f"subscription-{index}", ["one", "two", "three", "four"]) for index in range(4000))
    assert all(800 < share < 1200 for share in shares.values())


def test_without_members_nobody_delivers() -> None:
    assert owner_of("subscription", []) is None
