"""The manifest: what is part of a backup, and what is refused before anything is restored."""

import hashlib

import msgspec
import pytest

from postroad.api.installation import BackupInvalid, FormatTooNew
from postroad.backup.create import selection
from postroad.backup.manifest import (
    Manifest,
    Selection,
    StreamFile,
    adapted_config,
    check_platform_keys,
    decode_manifest,
    encode_manifest,
    file_name,
    fingerprint,
)
from postroad.settings import Secret, Settings

KEY, OTHER = "k" * 40, "o" * 40


def manifest(**more: object) -> Manifest:
    stream = StreamFile(
        name="JOBS", file=file_name("JOBS"), bytes=3, sha256="00", messages=2, last_sequence=9, config={"name": "JOBS"}, state={}
    )
    fields: dict[str, object] = {
        "id": "b1",
        "created_at": "2026-11-18T00:00:00Z",
        "postroad": "0.1.0",
        "nats_server": "2.15.0",
        "formats": {"frames": 1},
        "platform_keys": [fingerprint(KEY)],
        "replicas": 1,
        "is_live": False,
        "changed": [],
        "seconds": 0.5,
        "streams": [stream],
    }
    return Manifest(**{**fields, **more})  # type: ignore[arg-type]


def read(made: Manifest) -> Manifest:
    data = encode_manifest(made)
    return decode_manifest(data, hashlib.sha256(data).hexdigest() + "\n")


def test_a_manifest_is_read_as_it_was_written() -> None:
    made = manifest(is_live=True)
    assert read(made) == made
    assert (made.messages, made.bytes) == (2, 3)


def test_a_changed_manifest_is_refused() -> None:
    data = encode_manifest(manifest())
    checksum = hashlib.sha256(data).hexdigest()
    with pytest.raises(BackupInvalid, match="damaged"):
        decode_manifest(data.replace(b"JOBS", b"JOBZ"), checksum)


def test_a_newer_backup_or_format_is_refused() -> None:
    with pytest.raises(FormatTooNew, match="version 2"):
        read(manifest(v=2))
    with pytest.raises(FormatTooNew, match="frames 99"):
        read(manifest(formats={"frames": 99}))
    with pytest.raises(FormatTooNew, match="crystals 1"):
        read(manifest(formats={"crystals": 1}))


def test_a_file_outside_of_the_backup_is_refused() -> None:
    [stream] = manifest().streams
    with pytest.raises(BackupInvalid, match="outside"):
        read(manifest(streams=[msgspec.structs.replace(stream, file="../../etc/passwd")]))
    with pytest.raises(BackupInvalid, match="no name of a stream"):
        read(manifest(streams=[msgspec.structs.replace(stream, name="../x", file="streams/../x.snapshot")]))


def test_the_platform_key_must_be_that_of_the_backup() -> None:
    made = manifest()
    check_platform_keys(made, (KEY,))
    check_platform_keys(made, (OTHER, KEY))  # rotated since
    with pytest.raises(BackupInvalid, match="another platform key"):
        check_platform_keys(made, (OTHER,))
    assert KEY not in encode_manifest(made).decode() and fingerprint(KEY) != fingerprint(OTHER)


def test_the_streams_of_capabilities_and_tenants_are_selected() -> None:
    chosen = selection(Settings.of(platform_key=Secret(KEY)))
    for name in ("JOBS", "TELEMETRY", "COMMANDS", "AUDIT", "LEASES", "HISTORY", "INSIGHTS", "PROGRESS", "FANOUT", "CLEANUPS"):
        assert chosen.includes(name) and chosen.tenant_of(name) is None, name
    for name in ("KV_postroad_keys", "KV_postroad_queues", "KV_postroad_tenants", "KV_postroad_bans"):
        assert chosen.includes(name), name
    for name in ("Q_shop__orders", "D_shop", "T_shop__news", "S_shop", "KV_shop__cart"):
        assert chosen.tenant_of(name) == "shop", name
    for name in ("KV_postroad_leases", "KV_postroad_installation", "KV_postroad_dispatch_members", "KV_other", "EVENTS", "Q_"):
        assert not chosen.includes(name), name


def test_a_tenant_is_not_taken_for_another_with_a_longer_name() -> None:
    chosen = Selection((), ("Q", "D"))
    assert [chosen.tenant_of(name) for name in ("Q_shop-2__q", "D_shop-2", "Q_shop__a__b")] == ["shop-2", "shop-2", "shop"]


def test_replicas_and_regions_follow_the_new_installation() -> None:
    config = {"name": "JOBS", "num_replicas": 3, "placement": {"tags": ["region:eu"]}}
    single = adapted_config(config, from_replicas=3, to_replicas=1, is_clustered=False)
    assert (single["num_replicas"], single["placement"]) == (1, None)
    assert adapted_config({"num_replicas": 1}, from_replicas=1, to_replicas=3, is_clustered=True) == {"num_replicas": 3}
    assert adapted_config({"num_replicas": 5}, from_replicas=3, to_replicas=3, is_clustered=True) == {"num_replicas": 3}
