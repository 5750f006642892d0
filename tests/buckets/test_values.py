"""Values of buckets: read, write, preconditions, batches, lists, history, and NATS KV clients."""

import asyncio
import json
import uuid
from typing import Any

import nats
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad.jetstream.commit import PendingMessage
from postroad.kernel.clock import now_ms
from postroad.kernel.ids import new_id
from tests.gateway import Answer, Gateway, Tenant
from tests.waiting import eventually


async def make_bucket(tenant: Tenant, name: str = "cart", **settings: object) -> str:
    """Create a bucket; return the path that its routes start with."""
    (await tenant.client.post("/v1/buckets", {"name": name, **settings})).ok(201)
    return f"/v1/buckets/{name}"


async def put(tenant: Tenant, bucket: str, key: str, value: bytes = b"v", query: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return await tenant.client.call("PUT", f"{bucket}/keys/{key}{query}", data=value, headers=named)


async def keys_of(tenant: Tenant, bucket: str, query: str = "") -> list[str]:
    return [one["key"] for one in (await tenant.client.get(f"{bucket}/keys{query}")).ok()["entries"]]


# One value


async def test_a_value_is_returned_as_it_was_written(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    written = await put(tenant, bucket, "a/b.c=1", b"\x00\xff", Content_Type="image/png")
    assert written.ok() == {"key": "a/b.c=1", "revision": 1} and written.headers["etag"] == '"1"'
    found = await tenant.client.get(f"{bucket}/keys/a/b.c=1")
    assert (found.status, found.body, found.headers["content-type"]) == (200, b"\x00\xff", "image/png")
    assert found.headers["etag"] == '"1"'
    head = await tenant.client.call("HEAD", f"{bucket}/keys/a/b.c=1")
    assert (head.status, head.headers["etag"], head.headers["content-length"], head.body) == (200, '"1"', "2", b"")
    same = await tenant.client.get(f"{bucket}/keys/a/b.c=1", headers={"If-None-Match": '"1"'})
    assert (same.status, same.body) == (304, b"")
    (await put(tenant, bucket, "empty", b"")).ok()
    empty = await tenant.client.get(f"{bucket}/keys/empty")
    assert (empty.status, empty.body) == (200, b"")


@pytest.mark.parametrize("media", ["text/html", "image/svg+xml", "application/xhtml+xml"])
async def test_a_value_never_runs_as_a_page(tenant: Tenant, media: str) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "page", b"<script>alert(1)</script>", Content_Type=media)).ok()
    found = await tenant.client.get(f"{bucket}/keys/page")
    assert found.headers["content-security-policy"].startswith("sandbox")
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["content-disposition"] == "attachment"


async def test_a_deleted_value_is_gone_and_its_revision_is_kept(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=5)
    (await put(tenant, bucket, "k", b"one", Content_Type="text/plain")).ok()
    assert (await tenant.client.delete(f"{bucket}/keys/k")).ok() == {"key": "k", "revision": 2}
    (await tenant.client.get(f"{bucket}/keys/k")).problem(404, "bucket-key-not-found")
    old = await tenant.client.get(f"{bucket}/keys/k?revision=1")
    assert (old.body, old.headers["etag"]) == (b"one", '"1"')
    (await tenant.client.get(f"{bucket}/keys/k?revision=2")).problem(404, "bucket-key-not-found")
    (await tenant.client.get(f"{bucket}/keys/other?revision=1")).problem(404, "bucket-key-not-found")
    history = (await tenant.client.get(f"{bucket}/history/k")).ok()["entries"]
    assert [(one["revision"], one.get("operation", "put")) for one in history] == [(1, "put"), (2, "delete")]
    assert history[0]["valueB64"] == "b25l" and "valueB64" not in history[1]


async def test_preconditions(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "k", b"1", If_None_Match="*")).ok()
    (await put(tenant, bucket, "k", b"2", If_None_Match="*")).problem(412, "revision-mismatch")
    other = (await put(tenant, bucket, "k", b"2", If_Match='"7"')).problem(412, "revision-mismatch")
    assert other["detail"] == "the key 'k' has revision 1; the precondition names 7"
    never = (await put(tenant, bucket, "missing", b"2", If_Match='"1"')).problem(412, "revision-mismatch")
    assert "'missing' was never written" in never["detail"]
    assert (await put(tenant, bucket, "k", b"2", If_Match='"1"')).ok()["revision"] == 2
    wrong = await tenant.client.delete(f"{bucket}/keys/k", headers={"If-Match": '"1"'})
    wrong.problem(412, "revision-mismatch")
    (await tenant.client.delete(f"{bucket}/keys/k", headers={"If-Match": '"2"'})).ok()
    (await put(tenant, bucket, "k", b"3", If_None_Match="*")).ok()
    assert (await tenant.client.get(f"{bucket}/keys/k")).body == b"3"


async def test_one_of_many_concurrent_creations_wins(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    answers = await asyncio.gather(*[put(tenant, bucket, "k", str(n).encode(), If_None_Match="*") for n in range(32)])
    winners = [n for n, answer in enumerate(answers) if answer.status == 200]
    assert len(winners) == 1 and {answer.status for answer in answers} == {200, 412}
    assert (await tenant.client.get(f"{bucket}/keys/k")).body == str(winners[0]).encode()


BAD_KEYS = ["a b", "a..b", ".a", "a.", "a*", ">", "_kv.x", "ä", "x" * 257]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_key_that_nats_kv_does_not_allow_is_refused(tenant: Tenant, key: str) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, key)).problem(400, "invalid-parameter")
    write = {"writes": [{"key": "fine", "value": 1}, {"key": key, "value": 1}]}
    (await tenant.client.post(f"{bucket}/batch", write)).problem(422, "invalid-body")
    assert await keys_of(tenant, bucket) == []


async def test_bad_input_is_refused(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, maxValueBytes=10)
    for header in ("1", "*", 'W/"1"', '"x"', '"0"'):
        (await put(tenant, bucket, "k", If_Match=header)).problem(400, "invalid-parameter")
    (await put(tenant, bucket, "k", If_None_Match='"1"')).problem(400, "invalid-parameter")
    for header in ("*", '"1"'):
        never = await tenant.client.delete(f"{bucket}/keys/k", headers={"If-None-Match": header})
        never.problem(400, "invalid-parameter")
    (await put(tenant, bucket, "k", Content_Type="no type")).problem(400, "invalid-parameter")
    (await put(tenant, bucket, "k", b"x" * 11)).problem(413, "too-large")
    (await put(tenant, bucket, "k", query="?ttlSeconds=0")).problem(400, "invalid-parameter")
    (await tenant.client.get(f"{bucket}/keys/k?revision=x")).problem(400, "invalid-parameter")
    (await tenant.client.get(f"{bucket}/keys?prefix=a%20b")).problem(400, "invalid-parameter")
    (await tenant.client.get(f"{bucket}/watch?lastEventId=x")).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/buckets/none/keys/k")).problem(404, "bucket-not-found")
    (await put(tenant, bucket, "k", b"x" * 10)).ok()


async def test_a_full_bucket_is_507_and_deleting_is_possible(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, maxBytes=20_000)
    (await put(tenant, bucket, "a", b"x" * 15_000)).ok()
    (await put(tenant, bucket, "b", b"x" * 15_000)).problem(507, "storage-full")
    (await tenant.client.delete(f"{bucket}/keys/a")).ok()
    (await put(tenant, bucket, "b", b"x" * 15_000)).ok()


async def test_a_value_expires(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "short", query="?ttlSeconds=1")).ok()
    (await put(tenant, bucket, "long", query="?ttlSeconds=1000")).ok()
    listed = (await tenant.client.get(f"{bucket}/keys")).ok()["entries"]
    assert "expiresAt" in listed[-1]

    async def is_gone() -> bool:
        return (await tenant.client.get(f"{bucket}/keys/short")).status == 404

    await eventually(is_gone)
    assert await keys_of(tenant, bucket) == ["long"]
    (await put(tenant, bucket, "short", If_None_Match="*")).ok()


# Batches


async def test_a_batch_is_written_whole_or_not_at_all(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "old")).ok()
    writes = [
        {"key": "a", "value": {"n": 1}, "ifAbsent": True},
        {"key": "b", "valueB64": "AP8=", "contentType": "image/png"},
        {"key": "old", "operation": "delete", "ifRevision": 1},
    ]
    assert (await tenant.client.post(f"{bucket}/batch", {"writes": writes})).ok() == {
        "results": [{"key": "a", "revision": 2}, {"key": "b", "revision": 3}, {"key": "old", "revision": 4}]
    }
    listed = (await tenant.client.get(f"{bucket}/keys?values=true")).ok()["entries"]
    assert [(one["key"], one.get("value"), one.get("valueB64")) for one in listed] == [("a", {"n": 1}, None), ("b", None, "AP8=")]
    (await tenant.client.post(f"{bucket}/batch", {"writes": [{"key": "c", "value": 1}, writes[0]]})).problem(
        412, "revision-mismatch"
    )
    held = [{"key": "a", "value": 2, "ifRevision": 2}, {"key": "b", "operation": "delete", "ifRevision": 9}]
    refused = (await tenant.client.post(f"{bucket}/batch", {"writes": held})).problem(412, "revision-mismatch")
    assert refused["detail"] == "the key 'b' has revision 3; the precondition names 9"
    assert await keys_of(tenant, bucket) == ["a", "b"]
    again = [{"key": "old", "value": 1, "ifAbsent": True}, {"key": "new", "value": 1, "ifAbsent": True}]
    (await tenant.client.post(f"{bucket}/batch", {"writes": again})).ok()


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [{"key": "a", "value": 1}, {"key": "a", "value": 2}],
        [{"key": "a"}],
        [{"key": "a", "value": 1, "valueB64": ""}],
        [{"key": "a", "operation": "delete", "value": 1}],
        [{"key": "a", "valueB64": "?"}],
        [{"key": "a", "value": 1, "ifAbsent": True, "ifRevision": 1}],
        [{"key": f"k{n}", "value": 1} for n in range(101)],
    ],
)
async def test_an_invalid_batch_is_refused(tenant: Tenant, writes: list[dict[str, Any]]) -> None:
    bucket = await make_bucket(tenant)
    (await tenant.client.post(f"{bucket}/batch", {"writes": writes})).problem(422, "invalid-body")


async def test_a_ttl_that_is_too_short_is_named(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=2)
    writes = [{"key": "a", "value": 1}, {"key": "b", "value": 1, "ttlSeconds": 5}]
    problem = (await tenant.client.post(f"{bucket}/batch", {"writes": writes})).problem(422, "invalid-body")
    assert [one["path"] for one in problem["errors"]] == ["$.writes[1].ttlSeconds"]
    assert (
        "`history` above 1" in (await put(tenant, bucket, "a", query="?ttlSeconds=5")).problem(400, "invalid-parameter")["detail"]
    )


# Lists


@pytest.mark.parametrize("history", [1, 3])
async def test_a_list_has_each_key_once_in_pages(tenant: Tenant, history: int) -> None:
    bucket = await make_bucket(tenant, history=history)
    for round_number in range(2):
        writes = [{"key": f"a.{n}", "value": round_number} for n in range(60)]
        (await tenant.client.post(f"{bucket}/batch", {"writes": writes})).ok()
    (await put(tenant, bucket, "ab")).ok()
    (await tenant.client.delete(f"{bucket}/keys/a.7")).ok()
    found: list[str] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"{bucket}/keys?prefix=a.&limit=25{cursor}")).ok()
        found += [one["key"] for one in page["entries"]]
        if "nextCursor" not in page:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert found == [f"a.{n}" for n in range(60) if n != 7]
    assert await keys_of(tenant, bucket, "?prefix=a.5") == ["a.5", *[f"a.{n}" for n in range(50, 60)]]
    assert len(await keys_of(tenant, bucket, "?limit=1000")) == 60


async def test_a_cursor_of_a_deleted_bucket_is_refused(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for key in "abc":
        (await put(tenant, bucket, key)).ok()
    cursor = (await tenant.client.get(f"{bucket}/keys?limit=1")).ok()["nextCursor"]
    assert (await tenant.client.delete(bucket)).status == 204
    await make_bucket(tenant)
    (await tenant.client.get(f"{bucket}/keys?cursor={cursor}")).problem(400, "invalid-parameter")


# Other clients of NATS


async def test_nats_kv_clients_read_and_write_the_same_data(gateway: Gateway, tenant: Tenant, engine_url: str) -> None:
    bucket = await make_bucket(tenant, history=3)
    (await put(tenant, bucket, "ours", b"from http")).ok()
    connection = await nats.connect(engine_url)
    try:
        kv = await connection.jetstream().key_value(f"{tenant.id}__cart")
        entry = await kv.get("ours")
        assert (entry.value, entry.revision) == (b"from http", 1)
        assert await kv.put("theirs", b"from nats") == 2
        found = await tenant.client.get(f"{bucket}/keys/theirs")
        assert (found.body, found.headers["etag"]) == (b"from nats", '"2"')
        assert found.headers["content-type"] == "application/octet-stream"
        assert sorted(await kv.keys()) == ["ours", "theirs"]
        await kv.update("ours", b"changed", last=1)
        (await put(tenant, bucket, "ours", If_Match='"1"')).problem(412, "revision-mismatch")
        await kv.delete("ours")
        await kv.purge("theirs")
        assert await keys_of(tenant, bucket) == []
        (await tenant.client.get(f"{bucket}/keys/theirs")).problem(404, "bucket-key-not-found")
    finally:
        await connection.close()


async def test_foreign_data_blocks_nothing(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    committer = gateway.node.platform.committers.of(f"KV_{tenant.id}__cart")
    subject = f"$KV.{tenant.id}__cart."
    for key, headers in (
        ("sp~ecial", ""),
        ("odd", "Content-Type: \x01\r\nNats-TTL: never\r\nKV-Operation: ?\r\n"),
        ("_kv.x", ""),
    ):
        await committer.append(PendingMessage(subject + key, b"x", new_id(), headers))
    (await put(tenant, bucket, "fine")).ok()
    assert await keys_of(tenant, bucket) == ["odd", "fine"]
    odd = await tenant.client.get(f"{bucket}/keys/odd")
    assert (odd.status, odd.body, odd.headers["content-type"]) == (200, b"x", "application/octet-stream")


# Against a dictionary

KEYS = st.sampled_from(["a", "b", "a.b", "c/d"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "create", "update", "stale", "delete", "batch"]), KEYS, KEYS, st.binary(max_size=8)),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_a_bucket_behaves_as_a_dictionary(tenant: Tenant, steps: list[tuple[str, str, str, bytes]]) -> None:
    await run_steps(tenant, await make_bucket(tenant, f"model-{uuid.uuid4().hex}", history=64), steps)


async def run_steps(tenant: Tenant, bucket: str, steps: list[tuple[str, str, str, bytes]]) -> None:
    model: dict[str, tuple[int, bytes]] = {}
    history: dict[str, list[tuple[int, str]]] = {}
    last = 0

    def noted(key: str, answer: Any, value: bytes | None) -> None:
        nonlocal last
        assert answer["revision"] == last + 1
        last = answer["revision"]
        history.setdefault(key, []).append((last, "delete" if value is None else "put"))
        if value is None:
            model.pop(key, None)
        else:
            model[key] = last, value

    for action, key, other, value in steps:
        if action == "put":
            noted(key, (await put(tenant, bucket, key, value)).ok(), value)
        elif action == "create":
            answer = await put(tenant, bucket, key, value, If_None_Match="*")
            if key in model:
                answer.problem(412, "revision-mismatch")
            else:
                noted(key, answer.ok(), value)
        elif action == "update":
            answer = await put(tenant, bucket, key, value, If_Match=f'"{model[key][0] if key in model else 999}"')
            if key in model:
                noted(key, answer.ok(), value)
            else:
                answer.problem(412, "revision-mismatch")
        elif action == "stale":
            (await put(tenant, bucket, key, value, If_Match='"998"')).problem(412, "revision-mismatch")
        elif action == "delete":
            noted(key, (await tenant.client.delete(f"{bucket}/keys/{key}")).ok(), None)
        elif key != other:
            writes = [{"key": key, "value": 1, "ifAbsent": True}, {"key": other, "operation": "delete"}]
            batch = await tenant.client.post(f"{bucket}/batch", {"writes": writes})
            if key in model:
                batch.problem(412, "revision-mismatch")
            else:
                for result, stored in zip(batch.ok()["results"], (b"1", None), strict=True):
                    noted(result["key"], result, stored)
    for key in ("a", "b", "a.b", "c/d"):
        found = await tenant.client.get(f"{bucket}/keys/{key}")
        assert (found.status, found.body) == (200, model[key][1]) if key in model else found.status == 404
        kept = (await tenant.client.get(f"{bucket}/history/{key}")).ok()["entries"]
        assert [(one["revision"], one.get("operation", "put")) for one in kept] == history.get(key, [])
    listed = (await tenant.client.get(f"{bucket}/keys?values=true")).ok()["entries"]
    assert [(one["key"], one["revision"]) for one in listed] == sorted(
        ((key, revision) for key, (revision, _) in model.items()), key=lambda pair: pair[1]
    )
    assert json.dumps(listed)
    await check_watches(tenant, bucket, history, last)


async def check_watches(tenant: Tenant, bucket: str, history: dict[str, list[tuple[int, str]]], last: int) -> None:
    """A watch has the current values; one that resumes after any revision has exactly the changes since then."""
    changes = sorted((revision, kind, key) for key, kept in history.items() for revision, kind in kept)
    newest = {key: kept[-1] for key, kept in history.items()}
    current = sorted((revision, kind, key) for key, (revision, kind) in newest.items() if kind == "put")
    for after in (None, 0, last // 2, last):
        headers = {} if after is None else {"Last-Event-ID": f"{after}.{now_ms()}"}
        async with tenant.client.events(f"{bucket}/watch", headers) as reader:
            seen: list[tuple[int, str, str]] = []
            while (event := (await reader.take(1, 20))[0]).event != "ready":
                entry = json.loads(event.data)
                seen.append((entry["revision"], event.event, entry["key"]))
        assert seen == (current if after is None else [one for one in changes if one[0] > after])


SHORT, LONG = "?ttlSeconds=2", "?ttlSeconds=1000"
LIVES = st.lists(st.tuples(KEYS, st.sampled_from([SHORT, SHORT, LONG, "", "delete"])), min_size=1, max_size=12)


@given(steps=LIVES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_values_with_a_ttl_behave_as_a_dictionary_that_forgets(tenant: Tenant, steps: list[tuple[str, str]]) -> None:
    """Only the last write of a key decides whether it expires. A watch has each write, and each expiry once, in order."""
    bucket = await make_bucket(tenant, f"model-{uuid.uuid4().hex}")
    written: dict[str, list[tuple[str, str]]] = {}
    async with tenant.client.events(f"{bucket}/watch") as reader:
        assert (await reader.take(1, 20))[0].event == "ready"
        for key, life in steps:
            if life == "delete":
                (await tenant.client.delete(f"{bucket}/keys/{key}")).ok()
            else:
                (await put(tenant, bucket, key, query=life)).ok()
            written.setdefault(key, []).append(("delete" if life == "delete" else "put", life))
        due = {key for key, kept in written.items() if kept[-1][1] == SHORT}
        seen: dict[str, list[str]] = {}
        revisions: list[int] = []
        while {key for key, kinds in seen.items() if kinds[-1] == "expire"} < due or len(revisions) < len(steps) + len(due):
            event = (await reader.take(1, 20))[0]
            entry = json.loads(event.data)
            seen.setdefault(entry["key"], []).append(event.event)
            revisions.append(entry["revision"])
    assert revisions == sorted(set(revisions))
    for key, kept in written.items():
        kinds = iter(seen[key])
        for kind, _ in kept:  # a slow test meets an expiry before the next write
            assert (found := next(kinds)) == kind or (found, next(kinds)) == ("expire", kind), (key, kept, seen[key])
        assert list(kinds) == (["expire"] if key in due else [])
        answer = await tenant.client.get(f"{bucket}/keys/{key}")
        assert answer.status == (404 if key in due or kept[-1][0] == "delete" else 200)
    assert set(await keys_of(tenant, bucket)) == {key for key, kept in written.items() if kept[-1][1] in (LONG, "")}
