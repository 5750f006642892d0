"""Shield and fast stage together, against an independent reading of the rules: what memory lets through, and nothing else."""

import hashlib
import hmac
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.commands.fast import CacheAges, Dispatch, decide
from postroad.commands.records import GrantRecord, RouteRecord
from postroad.commands.registry_view import KnownSecret, RegistryView, Sender, known_route
from postroad.commands.rules import Ages, CachePolicy, ages_of
from postroad.commands.shield import Accepted, ShieldPolicy, inspect

NOW = 1_800_000_000_000
WINDOW_MS = 60_000
POLICY = CachePolicy(
    Ages(60, 180, 180),
    Ages(60, 180, 180),
    Ages(60, 180, 180),
    {"critical": ages_of("2,4,5"), "moderate": ages_of("10,20,30"), "low": ages_of("30,90,120")},
)
BOUNDS = {None: 180, "critical": 5, "moderate": 30, "low": 120}
KEYS = [bytes([number]) * 32 for number in range(3)]


def mostly(value: object, *others: object) -> st.SearchStrategy[Any]:
    """Mostly what is valid, so that some examples have nothing or one thing that is not."""
    return st.sampled_from([value] * 6 + list(others))


moments = mostly(None, NOW - 1, NOW, NOW + 1, NOW + 10**9)
sensitivities = st.sampled_from([None, "critical", "moderate", "low"])
secrets = st.tuples(mostly(KEYS[0], KEYS[1]), moments)
ages = st.one_of(st.just(0.0), st.floats(0, 6), st.floats(0, 400))


@settings(max_examples=1000)
@given(
    secrets=st.fixed_dictionaries({"hmac-v1": secrets}, optional={"hmac-v2": secrets}),
    version=mostly("hmac-v1", "hmac-v2", "hmac-v3"),
    key=mostly(*KEYS),
    skew_ms=st.sampled_from([0, 0, 0, 1, 59_999, 60_000, 60_001, 90_000, -1, -59_999, -60_000, -60_001, -90_000]),
    signer=mostly(None, "acme/a", "acme/b"),
    routed=st.tuples(mostly("optional", "required"), moments, sensitivities),
    grants=st.dictionaries(
        mostly("acme/a", "acme/b", "acme/*", "other/a", "other/*"), st.tuples(moments, sensitivities), min_size=1, max_size=3
    ),
    caches=st.tuples(ages, ages),
)
def test_what_is_dispatched_is_signed_in_time_granted_and_from_its_own_sender(
    secrets: dict[str, tuple[bytes, int | None]],
    version: str,
    key: bytes,
    skew_ms: int,
    signer: str | None,
    routed: tuple[str, int | None, str | None],
    grants: dict[str, tuple[int | None, str | None]],
    caches: tuple[float, float],
) -> None:
    """Requirements 48, 62, 146, 151, 166, 174: a valid HMAC of a version valid at that moment, a timestamp in the window, a grant
    in a state of the registry younger than its bound, and the caller's own source."""
    sent_at = datetime.fromtimestamp((NOW - skew_ms) / 1000, UTC).isoformat(timespec="milliseconds")
    command_id, payload = str(uuid.UUID(int=skew_ms % 97)), b'{"n":1}'
    metadata = {
        "id": command_id,
        "timestamp": sent_at,
        "type": "snavio.command-sent",
        "version_id": version,
        "hmac": hmac.new(key, payload + sent_at.encode() + b"post", hashlib.sha256).hexdigest(),
    }
    if signer is not None:
        lines = ("v2", command_id, signer, "bot", "post", sent_at, hashlib.sha256(payload).hexdigest())
        metadata["signature"] = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()
    body = msgspec.json.encode(
        {"metadata": metadata, "command": {"target": "bot", "name": "post", "payload": msgspec.Raw(payload)}}
    )
    known = {name: KnownSecret(own, expiry, expiry is None) for name, (own, expiry) in secrets.items()}
    sender = Sender("acme", "a", "i", frozenset({"key"}), known, 0)
    signature, route_expiry, sensitivity = routed
    route = RouteRecord(
        tenant="acme",
        service="bot",
        command="post",
        queue="q",
        signature=signature,
        expires_at_ms=route_expiry,
        sensitivity=sensitivity,  # type: ignore[arg-type]
        grants=tuple(GrantRecord(name, 0, "", expiry, of) for name, (expiry, of) in grants.items()),  # type: ignore[arg-type]
        created_at_ms=0,
        updated_at_ms=0,
    )
    view = RegistryView(lambda _key: known_route(route), lambda _key: None, lambda _record, _secret: None)

    def is_dispatched() -> bool:
        command = inspect(body, sender, NOW, ShieldPolicy(262_144, WINDOW_MS))
        if not isinstance(command, Accepted):
            return False
        return isinstance(decide(command, sender.source, view, CacheAges(*caches), NOW, POLICY), Dispatch)

    routes_age, secrets_age = caches
    own_key, secret_expiry = secrets.get(version, (None, None))
    is_signed = key == own_key and _lasts(secret_expiry) and signer in (None, "acme/a")
    grant = next((grants[name] for name in ("acme/a", "acme/*") if name in grants and _lasts(grants[name][0])), None)
    is_granted = grant is not None and _lasts(route_expiry) and routes_age < 180
    is_young = grant is not None and routes_age < min(BOUNDS[sensitivity], BOUNDS[grant[1]]) and secrets_age < 180
    may_pass = is_signed and abs(skew_ms) <= WINDOW_MS and is_granted and is_young
    must_pass = may_pass and max(caches) < 2 and (signature == "optional" or signer is not None)
    found = is_dispatched()
    assert (found and may_pass) or (not found and not must_pass)
    assert is_dispatched() == found, "the same input gives the same decision"
    assert not found or signature == "optional" or signer is not None


def _lasts(expiry_ms: int | None) -> bool:
    return expiry_ms is None or expiry_ms > NOW
