"""Backup and restore of whole installations, under load, with `kill -9` of either command."""

import asyncio
import json
import random
import signal
import subprocess
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest

from postroad.backup.hold import TTL_SECONDS
from tests.backup.commands import Writers, pull, run, share_platform_key, start, stored
from tests.backup.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def loaded(install: Install, name: str = "old") -> tuple[Installation, Writers]:
    running = await install(name, POSTROAD_WORKERS="2").start().ready(180)
    return running, await Writers(running).prepare()


async def call(running: Installation, headers: dict[str, str], method: str, path: str, body: object = None) -> object:
    async with aiohttp.ClientSession(running.url, headers=headers) as session, session.request(method, path, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json() if answer.status != 204 else None


def is_prefix(found: dict[str, set[int]]) -> bool:
    """Every client writes to the queue, then to the stream, then to the bucket."""
    return found["bucket"] <= found["stream"] <= found["queue"]


async def test_a_backup_under_load_is_the_state_of_one_moment(install: Install, tmp_path: Path) -> None:
    old, writers = await loaded(install)
    headers = old.headers
    leased = await call(old, headers, "PUT", "/v1/queues/leased", {"visibilityTimeoutMs": 3_600_000, "maxAttempts": 9})
    assert leased
    published = await call(old, headers, "POST", "/v1/queues/leased/messages", {"payload": "in progress"})
    async with aiohttp.ClientSession(old.url, headers=headers) as session:
        [before] = await pull(session, "leased", 1)
    writers.begin()
    await eventually(lambda: writers.count >= 200)
    acknowledged = {kind: set(numbers) for kind, numbers in writers.acknowledged.items()}

    done = await run(old.home, "backup", "--out", str(tmp_path / "backup"), "--json")

    assert done.code == 0, done
    after = writers.count
    await eventually(lambda: writers.count >= after + 100)  # writes continue
    await writers.end()
    assert set(writers.refused) <= {(503, "maintenance")}, writers.refused
    assert writers.refused and writers.retry_after == {"2"}
    summary = json.loads(done.stdout)
    assert summary["messages"] >= 600 and summary["changed"] == []
    text = (tmp_path / "backup" / "manifest.json").read_text()
    assert (old.home / "var" / "platform.key").read_text().strip() not in text
    assert "KV_postroad_leases" not in text and "Q_default__orders" in text
    await old.stop()

    new = install("new")
    share_platform_key(old.home, new.home)
    done = await run(new.home, "restore", str(tmp_path / "backup"), "--json")
    assert done.code == 0, done
    assert json.loads(done.stdout)["leases"] >= 1
    await new.start().ready(180)

    async with aiohttp.ClientSession(new.url, headers=headers) as session:
        [again] = await pull(session, "leased", 1, wait_ms=10_000)  # the lease of an hour has ended
    assert (again["messageId"], again["attempt"]) == (before["messageId"], before["attempt"] + 1)

    async def job_is_known() -> bool:
        job = await call(new, headers, "GET", f"/v1/jobs/{published['jobId']}")  # type: ignore[index]
        return bool(job["queue"] == "leased")  # type: ignore[index]

    await eventually(job_is_known)
    found = await stored(new, headers)
    for kind in Writers.KINDS:
        assert acknowledged[kind] <= found[kind].keys(), (
            f"lost of the {kind}: {sorted(acknowledged[kind] - found[kind].keys())[:9]}"
        )
    assert is_prefix({kind: set(numbers) for kind, numbers in found.items()}), "streams were copied at different moments"
    assert [number for number, count in found["queue"].items() if count > 1] == []
    assert "store_damaged" not in new.log()
    assert (await run(new.home, "check")).code == 0
    verified = await run(new.home, "verify", POSTROAD_URL=new.url, POSTROAD_KEY=old.credentials["tenant_key"])
    assert verified.code == 0, verified
    entries = await call(
        new, {"Authorization": f"Bearer {old.credentials['admin_key']}"}, "GET", "/api/control/audit?action=backup.*"
    )
    assert [one["action"] for one in entries["entries"]] == ["backup.restore"]  # type: ignore[index]


def has_begun(writers: Writers, held: int, process: "subprocess.Popen[str]") -> bool:
    return sum(writers.refused.values()) > held or process.poll() is not None


def has_streams(streams: Path, process: "subprocess.Popen[str]") -> bool:
    return streams.exists() or process.poll() is not None


async def test_a_killed_backup_ends_the_maintenance_and_leaves_no_backup(install: Install, tmp_path: Path) -> None:
    old, writers = await loaded(install)
    writers.begin()
    await eventually(lambda: writers.count >= 50)
    out, rng = tmp_path / "backup", random.Random(31)
    kills = 0
    while kills < 3:
        held = sum(writers.refused.values())
        process = start(old.home, "backup", "--out", str(out))
        await eventually(partial(has_begun, writers, held, process))
        await asyncio.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.communicate)
        if (out / "manifest.json").exists():
            out = tmp_path / f"backup-{kills}"  # it had ended
        kills += 1
        acknowledged = writers.count
        await eventually(lambda wanted=acknowledged + 20: writers.count >= wanted, TTL_SECONDS + 30)  # type: ignore[misc]
    done = await run(old.home, "backup", "--out", str(out))
    assert done.code == 0, done
    await writers.end()
    assert set(writers.refused) <= {(503, "maintenance")}
    assert (await run(old.home, "backup", "--out", str(out))).code == 1, "it would overwrite a backup"


async def test_a_killed_restore_is_resumed_or_aborted(install: Install, tmp_path: Path) -> None:
    old, writers = await loaded(install)
    writers.begin()
    await eventually(lambda: writers.count >= 100)
    await writers.end()
    done = await run(old.home, "backup", "--out", str(tmp_path / "backup"))
    assert done.code == 0, done
    headers = old.headers
    await old.stop()
    new, rng = install("new"), random.Random(31)
    share_platform_key(old.home, new.home)
    interrupted, streams = 0, new.home / "var" / "nats" / "jetstream" / "jetstream" / "$G" / "streams"
    for _ in range(4):
        process = start(new.home, "restore", str(tmp_path / "backup"))
        await eventually(partial(has_streams, streams, process))
        await asyncio.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.communicate)
        if process.returncode == 0:
            break
        interrupted += 1
        refused = (
            await run(new.home, "up", POSTROAD_PORT="0", POSTROAD_PIPELINE="false")
            if (streams / "KV_postroad_tenants").exists()
            else None
        )
        assert refused is None or (refused.code == 1 and "has not ended" in refused.stderr), refused
    assert interrupted
    done = await run(new.home, "restore", str(tmp_path / "backup"))
    assert done.code == 0 or "has" in done.stderr, done
    await new.start().ready(180)
    found = await stored(new, headers)
    assert {kind: set(numbers) for kind, numbers in found.items()} == writers.acknowledged
    await new.stop()
    again = await run(new.home, "restore", str(tmp_path / "backup"))
    assert again.code != 0 and "Engine not empty" in again.stderr


async def test_a_restore_does_not_sync_each_message(install: Install, tmp_path: Path) -> None:
    """nats-server gives a part of a stream five seconds, and with an fsync for each message that is too little on a disk."""
    old, writers = await loaded(install)
    assert (await run(old.home, "backup", "--out", str(tmp_path / "backup"))).code == 0
    headers = old.headers
    await old.stop()
    new = install("new", POSTROAD_SYNC="always")
    share_platform_key(old.home, new.home)
    process = start(new.home, "restore", str(tmp_path / "backup"), POSTROAD_SYNC="always")
    configuration = new.home / "var" / "nats" / "nats.conf"
    await eventually(configuration.exists)
    assert 'sync_interval: "always"' not in configuration.read_text()
    _, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, errors
    await new.start().ready(180)
    assert 'sync_interval: "always"' in configuration.read_text()
    found = await stored(new, headers)
    assert {kind: set(numbers) for kind, numbers in found.items()} == writers.acknowledged


async def test_what_cannot_be_restored_is_refused_before_anything_changes(install: Install, tmp_path: Path) -> None:
    old, writers = await loaded(install)
    folder, passphrase = tmp_path / "backup", tmp_path / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    done = await run(old.home, "backup", "--out", str(folder), "--passphrase-file", str(passphrase))
    assert done.code == 0, done
    live = await run(old.home, "backup", "--out", str(tmp_path / "live"), "--live")
    assert live.code == 0 and "writes were not held" in live.stdout
    assert not writers.refused
    running = await run(old.home, "restore", str(folder), "--passphrase-file", str(passphrase))
    assert running.code == 1 and "stop them first" in running.stderr
    await old.stop()
    new = install("new")
    (new.home / "var").mkdir()

    async def refused(expected: str, *words: str) -> None:
        done = await run(new.home, "restore", str(folder), *words)
        assert done.code == 1 and expected in done.stderr, done
        assert not (new.home / "var" / "nats").exists()

    await refused("platform key is not known", "--passphrase-file", str(passphrase))
    (new.home / "var" / "platform.key").write_text("another platform key, which is long enough\n")
    await refused("another platform key", "--passphrase-file", str(passphrase))
    share_platform_key(old.home, new.home)
    await refused("encrypted")
    wrong = tmp_path / "wrong"
    wrong.write_text("incorrect horse battery staple\n")
    await refused("passphrase is not", "--passphrase-file", str(wrong))
    manifest = folder / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"registry": 1', b'"registry": 9'))
    await refused("manifest.json is damaged", "--passphrase-file", str(passphrase))
    manifest.write_bytes(whole)
    file = folder / "streams" / "KV_postroad_keys.snapshot"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    await refused("KV_postroad_keys.snapshot is damaged", "--passphrase-file", str(passphrase))
    file.write_bytes(content)
    done = await run(new.home, "restore", str(folder), "--passphrase-file", str(passphrase))
    assert done.code == 0, done


async def test_a_tenant_is_restored_beside_others(install: Install, tmp_path: Path) -> None:
    old, _ = await loaded(install)
    admin = {"Authorization": f"Bearer {old.credentials['admin_key']}"}
    keys = {}
    for tenant in ("shop", "bank"):
        await call(old, admin, "POST", "/api/control/tenants", {"id": tenant})
        made = await call(
            old,
            admin | {"X-Postroad-Tenant": tenant},
            "POST",
            "/api/control/keys",
            {"name": "main", "scopes": ["publish", "consume", "read", "write", "admin"]},
        )
        keys[tenant] = {"Authorization": f"Bearer {made['key']}"}  # type: ignore[index]
        writers = await Writers(old, keys[tenant]).prepare()
        writers.begin(4)
        await eventually(lambda writers=writers: writers.count >= 20)  # type: ignore[misc]
        await writers.end()
        if tenant == "shop":
            shop = writers
    done = await run(old.home, "backup", "--out", str(tmp_path / "backup"))
    assert done.code == 0, done
    await old.stop()

    new = install("new")
    share_platform_key(old.home, new.home)
    await new.start().ready(180)
    others = await Writers(new).prepare()
    others.begin(2)
    process = start(new.home, "restore", str(tmp_path / "backup"), "--tenant", "shop")
    await eventually(lambda: others.count >= 5)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.communicate)
    done = await run(new.home, "restore", str(tmp_path / "backup"), "--tenant", "shop")
    assert done.code == 0 or "has the tenant" in done.stderr, done
    await others.end()
    assert not others.refused
    found = await stored(new, keys["shop"])
    assert {kind: set(numbers) for kind, numbers in found.items()} == shop.acknowledged
    async with aiohttp.ClientSession(new.url, headers=keys["bank"]) as session, session.get("/v1/queues") as answer:
        assert answer.status == 401
    again = await run(new.home, "restore", str(tmp_path / "backup"), "--tenant", "shop")
    assert again.code == 1 and "has the tenant 'shop'" in again.stderr
    missing = await run(new.home, "restore", str(tmp_path / "backup"), "--tenant", "nobody")
    assert missing.code == 1 and "no tenant 'nobody'" in missing.stderr
    assert msgspec.json.encode(found)
