"""Stored formats: bytes that earlier versions have written stay readable."""

import msgspec
import pytest

from postroad.access.records import InviteRecord, KeyHash, KeyRecord, SecretRecord, TenantRecord
from postroad.api.access import TenantState
from postroad.api.governance import AuditEntry
from postroad.governance.tenant_settings import TenantSettingsRecord
from postroad.kernel.identity import ALL_SCOPES, Scope

FORMATS: list[tuple[msgspec.Struct, bytes]] = [
    (
        TenantRecord(id="acme", created_at_ms=5, updated_at_ms=6),
        b'{"v":1,"id":"acme","state":"ready","description":"","invite":null,"createdAtMs":5,"updatedAtMs":6}',
    ),
    (
        TenantRecord(
            id="acme", state=TenantState.DELETING, description="d", invite="0123456789abcdef", created_at_ms=5, updated_at_ms=6
        ),
        b'{"v":1,"id":"acme","state":"deleting","description":"d","invite":"0123456789abcdef","createdAtMs":5,"updatedAtMs":6}',
    ),
    (
        KeyRecord(
            id="0123456789abcdef",
            tenant="acme",
            name="first key",
            scopes=ALL_SCOPES,
            hashes=(KeyHash(sha256="aa", created_at_ms=5),),
            created_at_ms=5,
            updated_at_ms=6,
        ),
        (
            b'{"v":2,"id":"0123456789abcdef","tenant":"acme","name":"first key",'
            b'"scopes":["publish","consume","read","write","admin"],'
            b'"allowedQueues":["*"],"allowedTopics":["*"],"allowedBuckets":["*"],"allowedStreams":["*"],"allowedServices":["*"],'
            b'"isEnabled":true,'
            b'"hashes":[{"sha256":"aa","createdAtMs":5,"expiresAtMs":null}],"createdBy":"","createdAtMs":5,"updatedAtMs":6,'
            b'"expiresAtMs":null,"maxRequestsPerSecond":null,"maxLiveConnections":null,"aws":[]}'
        ),
    ),
    (
        KeyRecord(
            id="0123456789abcdef",
            tenant=None,
            name="n",
            scopes=(Scope.READ,),
            allowed_queues=("orders.*", "x"),
            allowed_topics=(),
            allowed_streams=("s",),
            is_enabled=False,
            hashes=(KeyHash(sha256="bb", created_at_ms=7), KeyHash(sha256="aa", created_at_ms=5, expires_at_ms=9)),
            created_by="fedcba9876543210",
            created_at_ms=5,
            updated_at_ms=6,
            expires_at_ms=8,
            max_requests_per_second=100,
            max_live_connections=3,
        ),
        (
            b'{"v":2,"id":"0123456789abcdef","tenant":null,"name":"n","scopes":["read"],"allowedQueues":["orders.*","x"],'
            b'"allowedTopics":[],"allowedBuckets":["*"],"allowedStreams":["s"],"allowedServices":["*"],"isEnabled":false,'
            b'"hashes":[{"sha256":"bb","createdAtMs":7,"expiresAtMs":null},{"sha256":"aa","createdAtMs":5,"expiresAtMs":9}],'
            b'"createdBy":"fedcba9876543210","createdAtMs":5,"updatedAtMs":6,"expiresAtMs":8,'
            b'"maxRequestsPerSecond":100,"maxLiveConnections":3,"aws":[]}'
        ),
    ),
    (
        SecretRecord(
            id="01a1",
            tenant="acme",
            name="n",
            locked="AAAA",
            scopes=(Scope.READ,),
            allowed_streams=("chat-*",),
            created_by="fedcba9876543210",
            created_at_ms=5,
            expires_at_ms=6,
        ),
        (
            b'{"v":1,"id":"01a1","tenant":"acme","name":"n","locked":"AAAA","scopes":["read"],"allowedStreams":["chat-*"],'
            b'"createdBy":"fedcba9876543210","createdAtMs":5,"expiresAtMs":6}'
        ),
    ),
    (
        InviteRecord(
            id="0123456789abcdef",
            sha256="aa",
            tenant=None,
            note="for Ada",
            auto_create_queues=True,
            created_by="fedcba9876543210",
            created_at_ms=5,
            expires_at_ms=6,
            claimed_at_ms=7,
            claimed_tenant="acme",
        ),
        (
            b'{"v":1,"id":"0123456789abcdef","sha256":"aa","tenant":null,"note":"for Ada","autoCreateQueues":true,'
            b'"createdBy":"fedcba9876543210","createdAtMs":5,"expiresAtMs":6,"claimedAtMs":7,"claimedTenant":"acme"}'
        ),
    ),
    (
        TenantSettingsRecord(chosen={"pullMax": 5, "auditMode": "off"}, updated_at_ms=5),
        b'{"v":1,"chosen":{"pullMax":5,"auditMode":"off"},"updatedAtMs":5}',
    ),
    (
        AuditEntry(
            v=1,
            id="01a1",
            at="2026-11-15T20:45:07.123Z",
            tenant="acme",
            action="key.change",
            target="0123456789abcdef",
            outcome="failed",
            of="01a0",
            actor_key_id="jwt:01a2",
            actor_is_platform=True,
            actor_subject="ada",
            request_id="r-1",
            address="192.0.2.1",
            before={"name": "a"},
            after={"name": "b"},
        ),
        (
            b'{"v":1,"id":"01a1","at":"2026-11-15T20:45:07.123Z","tenant":"acme","action":"key.change","target":"0123456789abcdef",'
            b'"outcome":"failed","of":"01a0","actorKeyId":"jwt:01a2","actorIsPlatform":true,"actorSubject":"ada","requestId":"r-1",'
            b'"address":"192.0.2.1","before":{"name":"a"},"after":{"name":"b"}}'
        ),
    ),
]


@pytest.mark.parametrize(("record", "stored"), FORMATS, ids=lambda one: type(one).__name__)
def test_records_of_earlier_versions_are_read(record: msgspec.Struct, stored: bytes) -> None:
    assert msgspec.json.decode(stored, type=type(record)) == record


def test_a_key_without_limits_is_read() -> None:
    """The format before limits were added."""
    record, stored = FORMATS[2]
    earlier = stored.replace(b',"maxRequestsPerSecond":null,"maxLiveConnections":null', b"")
    assert earlier != stored
    assert msgspec.json.decode(earlier, type=KeyRecord) == record


@pytest.mark.parametrize(("record", "stored"), FORMATS, ids=lambda one: type(one).__name__)
def test_the_stored_format_has_not_changed(record: msgspec.Struct, stored: bytes) -> None:
    """A change would need a new version, since two versions run side by side during an upgrade. Defaults may be omitted."""
    full = msgspec.json.decode(stored)
    written = msgspec.json.decode(msgspec.json.encode(record))
    assert {"v": 1, **written} == full


@pytest.mark.parametrize(("record", "stored"), FORMATS, ids=lambda one: type(one).__name__)
def test_unknown_fields_are_ignored(record: msgspec.Struct, stored: bytes) -> None:
    later = stored[:-1] + b',"somethingNew":{"a":[1]}}'
    assert msgspec.json.decode(later, type=type(record)) == record


def test_a_key_accepts_each_of_its_texts_until_it_expires() -> None:
    hashes = (KeyHash(sha256="new", created_at_ms=1), KeyHash(sha256="old", created_at_ms=0, expires_at_ms=10))
    key = KeyRecord(id="k", tenant="t", name="n", scopes=(), hashes=hashes, created_at_ms=0, updated_at_ms=0)
    assert (key.text_of("new", 9), key.text_of("old", 9)) == hashes
    assert (key.text_of("new", 10), key.text_of("old", 10)) == (hashes[0], None)
    assert key.text_of("other", 9) is None and key.text_of("", 9) is None


def test_a_text_without_an_id_is_accepted_until_the_key_is_rotated() -> None:
    first, second = KeyHash(sha256="a" * 64, created_at_ms=0), KeyHash(sha256="b" * 64, created_at_ms=1)
    key = KeyRecord(id="k", tenant="t", name="n", scopes=(), hashes=(first,), created_at_ms=0, updated_at_ms=0)
    assert key.text_by_id("", 9) == first == key.text_by_id("a" * 16, 9)
    rotated = msgspec.structs.replace(key, hashes=(second,))
    assert rotated.text_by_id("", 9) is None and rotated.text_by_id("a" * 16, 9) is None


def test_a_key_is_active_while_it_is_enabled_and_has_not_expired() -> None:
    key = KeyRecord(id="k", tenant="t", name="n", scopes=(), hashes=(), created_at_ms=0, updated_at_ms=0, expires_at_ms=10)
    assert key.is_active(9) and not key.is_active(10)
    assert not msgspec.structs.replace(key, is_enabled=False).is_active(9)
