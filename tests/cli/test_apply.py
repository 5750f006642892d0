"""`postroad apply`, `diff` and `export` on a running installation, each test in a tenant of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad.client import Postroad
from postroad.declarations.application import execute, export, make_plan
from postroad.declarations.documents import parse, written
from tests.cli.shell import Shell
from tests.declarations.test_documents import WHOLE
from tests.installation import Installation


@pytest.fixture
def tenant(operator: Shell, name: str) -> Shell:
    operator.run("tenants", "create", name)
    return operator.with_environment(POSTROAD_TENANT=name)


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_all_kinds_are_applied_once_exported_and_corrected_after_drift(tenant: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "shop.json", WHOLE)
    applied = tenant.run("apply", "-f", file, "--yes", "--secrets", str(tmp_path / "secrets"))
    assert "create queues orders" in applied.stdout and "prk_" not in applied.stdout
    assert tenant.run("apply", "-f", file).stdout == tenant.run("diff", "-f", file).stdout == "no differences\n"

    exported = tmp_path / "exported.yaml"
    exported.write_text(tenant.run("export").stdout)
    assert tenant.run("diff", "-f", str(exported)).stdout == "no differences\n"
    assert set(WHOLE) - {"name"} <= set(tenant.run("export", "--json").json)

    tenant.run("queues", "update", "orders", "max_attempts=9")
    drifted = tenant.invoke("diff", "-f", file)
    assert drifted.code == 6 and drifted.stdout == "change queues orders: max_attempts 9 → 5\n"
    tenant.run("apply", "-f", file, "--yes")
    assert tenant.run("diff", "-f", file).stdout == "no differences\n"

    changed = json.loads(json.dumps(WHOLE))
    changed["subscriptions"]["prices/to-orders"] = {"delivery_type": "sse"}
    changed["streamSubscriptions"]["billing"]["streams"] = ["extra"]
    changed["buckets"]["cache"]["ttlSeconds"] = 120
    changed["keys"]["worker"]["enabled"] = False
    changed["settings"]["contact"] = "other@example.com"
    changed["routes"]["bot/post"]["quotas"]["billing"]["max"] = 7
    file = write(tmp_path / "changed.json", changed)
    shown = tenant.run("apply", "-f", file, "--yes").stdout
    assert "replace subscriptions prices/to-orders" in shown and "change streamSubscriptions billing" in shown
    assert "made 6 changes" in shown
    assert tenant.run("diff", "-f", file).stdout == "no differences\n"

    empty = write(tmp_path / "empty.json", {"name": "shop"})
    assert tenant.run("diff", "-f", empty).stdout == "no differences\n"
    pruned = tenant.run("apply", "-f", empty, "--prune", "--yes").stdout
    assert "delete queues orders" in pruned and "delete settings contact" in pruned
    left = tenant.run("export", "--json").json
    assert left == {"topics": {"cache-changes": {}}}, "the topic of a change stream outlives its bucket"
    assert tenant.run("manifests", "get", "shop", "--json").json["resources"] == []
    assert [one["name"] for one in tenant.run("manifests", "list", "--json").json] == ["shop"]
    tenant.run("manifests", "delete", "shop", "--yes")
    assert tenant.run("manifests", "list", "--json").json == []


def test_texts_of_keys_and_secrets_are_handed_out_once(tenant: Shell, running: Installation, tmp_path: Path) -> None:
    file = write(tmp_path / "keys.json", {"keys": {"worker": {"scopes": ["read"]}}, "alertChannels": WHOLE["alertChannels"]})
    secrets = tmp_path / "secrets"
    tenant.run("apply", "-f", file, "--yes", "--secrets", str(secrets))
    texts = dict(line.split(" ") for line in secrets.read_text().splitlines())
    assert set(texts) == {"keys/worker", "alertChannels/hook"} and secrets.stat().st_mode & 0o077 == 0
    assert tenant.with_environment(POSTROAD_KEY=texts["keys/worker"], POSTROAD_TENANT="").run("queues", "list").code == 0
    assert not any(text in tenant.run("export").stdout for text in texts.values())
    shown = tenant.run("apply", "-f", write(tmp_path / "two.json", {"keys": {"other": {"scopes": ["read"]}}}), "--yes").stdout
    assert "keys/other " in shown, "without --secrets they are printed"


def test_prune_leaves_alone_what_others_created(tenant: Shell, tmp_path: Path) -> None:
    tenant.run("queues", "put", "manual")
    both = write(tmp_path / "a.json", {"queues": {"manual": {"maxAttempts": 3}, "own": {}, "replaced": {}}})
    other = write(tmp_path / "b.json", {"name": "other", "queues": {"others": {}}})
    tenant.run("apply", "-f", both, "--yes")
    tenant.run("apply", "-f", other, "--yes")
    tenant.run("queues", "delete", "replaced", "--yes")
    tenant.run("queues", "put", "replaced")
    empty = write(tmp_path / "empty.json", {})
    assert tenant.run("apply", "-f", empty, "--prune", "--dry-run").stdout == "delete queues own\n"
    tenant.run("apply", "-f", empty, "--prune", "--yes")
    assert [one["name"] for one in tenant.run("queues", "list", "--json").json] == ["manual", "others", "replaced"]


def test_after_an_error_the_next_apply_continues(tenant: Shell, tmp_path: Path) -> None:
    content = {
        "name": "shop",
        "queues": {"orders": {}},
        "topics": {"prices": {}},
        "subscriptions": {"prices/a": {"delivery_type": "queue", "queue": "missing"}},
        "services": {"billing": {}},
    }
    failed = tenant.invoke("apply", "-f", write(tmp_path / "a.json", content), "--yes")
    assert failed.code == 4 and "made 2 of 4 changes; run it again to continue" in failed.stderr
    assert len(tenant.run("manifests", "get", "shop", "--json").json["resources"]) == 2
    content["queues"] = {"orders": {}, "missing": {}}
    shown = tenant.run("apply", "-f", write(tmp_path / "b.json", content), "--yes").stdout
    assert "create queues missing" in shown and "made 3 changes" in shown
    tenant.run("apply", "-f", write(tmp_path / "c.json", {"name": "shop"}), "--prune", "--yes")
    assert tenant.run("export", "--json").json == {}


def test_the_second_apply_of_500_resources_has_nothing_to_do(tenant: Shell, tmp_path: Path) -> None:
    routes = {f"bot/command-{n}": {"queue": "orders", "grants": ["billing", f"partner/s{n}"]} for n in range(120)}
    services = {"billing": {}, "bot": {}, **{f"service-{n}": {"description": str(n)} for n in range(137)}}
    file = write(tmp_path / "many.json", {"queues": {"orders": {}}, "services": services, "routes": routes})
    assert "made 500 changes" in tenant.run("apply", "-f", file, "--yes").stdout
    assert tenant.run("apply", "-f", file).stdout == "no differences\n"
    tenant.run("services", "put", "service-3", "--description", "changed by hand")
    assert tenant.invoke("diff", "-f", file).code == 6
    assert "made 1 changes" in tenant.run("apply", "-f", file, "--yes").stdout


def test_a_disabled_tenant_is_declared_with_a_platform_key(operator: Shell, name: str, tmp_path: Path) -> None:
    content = {"name": name, "tenants": {f"{name}-a": {"description": "first"}, f"{name}-b": {"enabled": False}}}
    file = write(tmp_path / "tenants.json", content)
    assert "made 2 changes" in operator.run("apply", "-f", file, "--yes").stdout
    assert operator.run("diff", "-f", file).stdout == "no differences\n"
    states = {one["id"]: one["state"] for one in operator.run("tenants", "list", "--json").json}
    assert (states[f"{name}-a"], states[f"{name}-b"]) == ("ready", "disabled")
    content["tenants"] = {f"{name}-a": {"description": "first"}}
    pruned = operator.run("apply", "-f", write(tmp_path / "one.json", content), "--prune", "--yes").stdout
    assert pruned.startswith(f"delete tenants {name}-b\n")


NAMES = st.sampled_from(["a", "b", "c"])
SERVICES = st.dictionaries(NAMES, st.builds(lambda text: {"description": text}, st.sampled_from(["", "x", "y"])), max_size=3)
TOPICS = st.dictionaries(NAMES, st.builds(lambda count: {"maxMessages": count}, st.sampled_from([0, 10, 20])), max_size=3)
FILES = st.builds(lambda services, topics: {"services": services, "topics": topics}, SERVICES, TOPICS)
EDITS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), NAMES, st.sampled_from(["x", "z"])), max_size=4)


@pytest.fixture
def client(running: Installation, operator: Shell, name: str) -> Any:
    operator.run("tenants", "create", name)
    with Postroad(running.url, running.credentials["admin_key"], tenant=name) as connected:
        yield connected


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(EDITS, FILES), min_size=1, max_size=3))
def test_after_random_edits_an_apply_leaves_no_difference_and_prunes_only_its_own(client: Postroad, steps: Any) -> None:
    apply_file(client, {})  # what the example before left behind
    for one in list(client.services.list()):
        client.services.delete(one.name)
    by_hand: set[str] = set()
    for edits, content in steps:
        for action, name, text in edits:
            existing = {one.name for one in client.services.list()}
            if action == "put":
                by_hand |= {name} - existing
                client.services.put(name, description=text)
            elif name in existing:
                client.services.delete(name)
                by_hand.discard(name)
        apply_file(client, content)
        assert not make_plan(client, "random", parse(content, "t", "file").resources, prune=True).changes
        exported = parse(written(export(client)), "t", "export").resources
        assert not make_plan(client, "exported", exported, prune=True).changes
        left = {one.name for one in client.services.list()}
        assert left == by_hand | set(content["services"])
        assert {one.name for one in client.topics.list()} == set(content["topics"])


def apply_file(client: Postroad, content: dict[str, Any]) -> None:
    made = make_plan(client, "random", parse(content, "t", "file").resources, prune=True)
    execute(client, made, lambda _change: None, lambda _resource, _text: None)
