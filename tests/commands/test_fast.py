"""The fast stage and the ages of caches: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands.fast import CacheAges, Dispatch, Escalate, Escalation, decide
from postroad.commands.records import GrantRecord, RouteRecord, route_key
from postroad.commands.registry_view import RegistryView, known_route
from postroad.commands.rules import Ages, CachePolicy, Phase, ages_of, grant_source
from postroad.commands.shield import Accepted, Invalid

NOW = 1_000_000
POLICY = CachePolicy(
    Ages(60, 180, 180),
    Ages(60, 180, 180),
    Ages(60, 180, 180),
    {"critical": ages_of("2,4,5"), "moderate": ages_of("10,20,30"), "low": ages_of("30,90,120")},
)
COMMAND = Accepted("id", "bot", "acme", "bot", "post", b"1", "t", NOW, 0, "hmac-v1", False, False, "h", False, False)


def route(**fields: object) -> RouteRecord:
    return RouteRecord(
        tenant="acme",
        service="bot",
        command="post",
        queue="q",
        created_at_ms=0,
        updated_at_ms=0,
        **fields,  # type: ignore[arg-type]
    )


def view(*records: RouteRecord) -> RegistryView:
    known = {route_key(one.tenant, one.service, one.command): one for one in records}
    return RegistryView(
        lambda key: known_route(known[key]) if key in known else None, lambda _key: None, lambda _record, _secret: None
    )


def decided(record: RouteRecord | None, routes: float = 0, secrets: float = 0, source: str = "acme/a") -> object:
    return decide(COMMAND, source, view(*([record] if record else [])), CacheAges(routes, secrets), NOW, POLICY)


GRANTS = (GrantRecord("acme/a", 0),)


def test_a_granted_command_is_dispatched_from_memory() -> None:
    """Requirements 45, 48, 50, 51, 131, 228"""
    found = decided(route(grants=GRANTS))
    assert isinstance(found, Dispatch) and found.route.record.queue == "q" and not found.phases.is_stale


@pytest.mark.parametrize(
    ("sensitivity", "age", "expected"),
    [
        (None, 59, Phase.FRESH),
        (None, 60, Phase.STALE),
        (None, 179.9, Phase.STALE),
        (None, 180, Escalation.CACHE_EXPIRED),
        ("critical", 1.9, Phase.FRESH),
        ("critical", 2, Phase.STALE),
        ("critical", 4, Escalation.CACHE_EXPIRED),
        ("moderate", 9.9, Phase.FRESH),
        ("moderate", 10, Phase.STALE),
        ("moderate", 20, Escalation.CACHE_EXPIRED),
        ("low", 29, Phase.FRESH),
        ("low", 89, Phase.STALE),
        ("low", 90, Escalation.CACHE_EXPIRED),
    ],
)
def test_phases_by_sensitivity(sensitivity: str | None, age: float, expected: object) -> None:
    """Requirements 54, 55, 58, 59, 60, 63, 65, 66, 67, 231"""
    for record in (
        route(grants=GRANTS, sensitivity=sensitivity),
        route(grants=(GrantRecord("acme/a", 0, "", None, sensitivity),), sensitivity="low" if sensitivity else None),  # type: ignore[arg-type]
    ):
        found = decided(record, routes=age)
        got = found.code if isinstance(found, Escalate) else found.phases.grants if isinstance(found, Dispatch) else found
        assert got == expected


def test_a_grant_narrows_the_sensitivity_of_its_route_and_never_widens_it() -> None:
    assert POLICY.of_grant("critical", "low") == POLICY.profiles["critical"]
    assert POLICY.of_grant("low", "critical") == POLICY.profiles["critical"]
    assert POLICY.of_grant(None, None) == POLICY.grants


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (None, Escalation.CACHE_MISS),
        (route(), Escalation.CACHE_MISS),
        (route(grants=(GrantRecord("acme/b", 0),)), Escalation.CACHE_MISS),
        (route(grants=(GrantRecord("acme/a", 0, "", NOW),)), Escalation.CACHE_MISS),
        (route(grants=GRANTS, expires_at_ms=NOW), Escalation.CACHE_MISS),
        (route(grants=GRANTS, acl_check="sync"), Escalation.ACL_SYNC),
    ],
)
def test_escalations(record: RouteRecord | None, code: Escalation) -> None:
    """Requirements 61, 140, 227"""
    found = decided(record)
    assert isinstance(found, Escalate) and found.code is code


def test_expired_secrets_or_routes_are_never_used() -> None:
    """Requirements 60"""
    for ages in ((180, 0), (0, 180), (float("inf"), 0), (0, float("inf"))):
        found = decided(route(grants=GRANTS), *ages)
        assert isinstance(found, Escalate) and found.code is Escalation.CACHE_EXPIRED


def test_a_required_signature_is_missed() -> None:
    found = decided(route(grants=GRANTS, signature="required"))
    assert isinstance(found, Invalid) and found.reason == "signature-missing"


def test_a_grant_of_a_tenant_covers_its_services_only() -> None:
    record = route(grants=(GrantRecord("acme/*", 0),))
    assert isinstance(decided(record, source="acme/x"), Dispatch)
    assert isinstance(decided(record, source="acme2/x"), Escalate)


def test_jitter_moves_fresh_and_stale_and_not_the_bound() -> None:
    """Requirements 57"""
    jittered = POLICY.with_jitter(1.1, 1.1, 0.9)
    assert jittered.routes.fresh == pytest.approx(66) and jittered.secrets.stale == pytest.approx(162)
    critical = jittered.profiles["critical"]
    assert critical.stale == pytest.approx(4.4) and critical.bound == 5
    assert ages_of("2,5,5").with_jitter(1.1).stale == 5


@pytest.mark.parametrize("text", ["", "1", "1,2", "2,1,3", "0,1,2", "1,2,inf", "a,b,c"])
def test_ages_must_ascend(text: str) -> None:
    with pytest.raises(ValueError):
        ages_of(text)


@given(age=st.floats(0, 1e6), earlier=st.floats(0, 1e6), factor=st.floats(0.9, 1.1))
def test_an_older_cache_is_never_in_an_earlier_phase(age: float, earlier: float, factor: float) -> None:
    order = [Phase.FRESH, Phase.STALE, Phase.EXPIRED]
    for ages in (POLICY.routes, *POLICY.profiles.values()):
        jittered = ages.with_jitter(factor)
        assert order.index(jittered.phase(max(age, earlier))) >= order.index(jittered.phase(min(age, earlier)))
        assert jittered.phase(ages.bound) is Phase.EXPIRED


@given(
    grants=st.lists(st.sampled_from(["acme/a", "acme/b", "acme/*", "other/a", "other/*"]), unique=True),
    expiry=st.sampled_from([None, NOW - 1, NOW + 1]),
    source=st.sampled_from(["acme/a", "acme/c", "other/a", "third/a"]),
    age=st.floats(0, 300),
)
def test_what_is_dispatched_has_a_valid_grant_younger_than_its_bound(
    grants: list[str], expiry: int | None, source: str, age: float
) -> None:
    record = route(grants=tuple(GrantRecord(one, 0, "", expiry) for one in grants))
    first, again = decided(record, age, 0, source), decided(record, age, 0, source)
    assert first == again  # the same input, the same decision
    if isinstance(first, Dispatch):
        assert {source, source.partition("/")[0] + "/*"} & set(grants)
        assert expiry is None or expiry > NOW
        assert age < POLICY.grants.bound


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "acme/a"),
        ("other/a", "other/a"),
        ("other/*", "other/*"),
        ("*", "acme/*"),
        ("*/*", None),
        ("*/a", None),
        ("a/b/c", None),
    ],
)
def test_senders_of_grants(text: str, expected: str | None) -> None:
    assert grant_source("acme", text) == expected
