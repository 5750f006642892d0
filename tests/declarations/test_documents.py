"""Files that declare resources: what they may contain, and their schema."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]

from postroad.declarations.documents import json_schema, parse, read_documents, written

WHOLE: dict[str, Any] = {
    "name": "shop",
    "settings": {"auditMode": "full", "contact": "ops@example.com"},
    "keys": {"worker": {"scopes": ["consume"], "allowedQueues": ["orders*"]}},
    "queues": {"orders": {"maxAttempts": 5, "schema": {"type": "object"}}, "failed": {}},
    "topics": {"prices": {"retentionMs": 3_600_000}},
    "buckets": {"cache": {"ttlSeconds": 60, "change_stream_topic": "cache-changes"}},
    "subscriptions": {"prices/to-orders": {"delivery_type": "queue", "queue": "orders", "filter": ["a.*"]}},
    "streamSubscriptions": {"billing": {"pattern": "orders/**", "wakeStream": "wakes"}},
    "schedules": {"nightly": {"queue": "orders", "cron": "0 3 * * *", "payload": {"kind": "nightly"}}},
    "services": {"billing": {}, "bot": {"description": "posts"}},
    "routes": {
        "bot/post": {"queue": "orders", "grants": ["billing", {"source": "partner/*"}], "quotas": {"billing": {"max": 5}}}
    },
    "alertChannels": {"hook": {"kind": "webhook", "url": "https://example.com/hook"}},
    "alertRules": {"failing": {"events": "queue.dead_letters_growing", "minCount": 3, "channels": ["dashboard"]}},
}


def test_what_is_written_is_read_back_with_every_kind() -> None:
    document = parse(WHOLE, "shop", "shop.yaml")
    assert document.name == "shop"
    assert set(document.resources) == {*WHOLE, "grants", "quotas"} - {"name"}
    assert set(document.resources["grants"]) == {"bot/post/shop/billing", "bot/post/partner/*"}
    assert parse(written(document.resources), "shop", "again").resources == document.resources


def test_files_of_a_directory_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "shop"\n[queues.orders]\nmaxAttempts = 5\n')
    (tmp_path / "b.yaml").write_text("queues: {failed: {}}\n")
    (tmp_path / "c.json").write_text(json.dumps({"services": {"billing": {}}}))
    (tmp_path / "README.md").write_text("not a declaration")
    document = read_documents([tmp_path], "shop")
    assert document.name == "shop" and set(document.resources["queues"]) == {"orders", "failed"}
    (tmp_path / "d.yaml").write_text("queues: {failed: {}}\n")
    with pytest.raises(ValueError, match=r"d.yaml: queues.failed is declared in another file"):
        read_documents([tmp_path], "shop")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ({"routes": {"x": {}}}, "named <service>/<command>"),
        ({"other": {}}, "unknown kind 'other'"),
        ({"queues": {"orders": {"maxAttempt": 5}}}, "queues.orders: .*maxAttempt"),
        ({"queues": {"orders": {"maxAttempts": "five"}}}, "queues.orders: .*maxAttempts"),
        ({"settings": {"maxQueue": 5}}, "settings.maxQueue"),
        ({"keys": {"worker": {"scopes": ["consume"], "key": "pr_secret"}}}, "keys.worker: .*`key`"),
        ({"name": "no spaces"}, "a name has"),
        ([], "a table of kinds"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(content: Any, cause: str) -> None:
    with pytest.raises(ValueError, match=f"shop.yaml: .*{cause}"):
        parse(content, "shop", "shop.yaml")


def test_the_schema_accepts_what_can_be_read_and_refuses_typing_errors() -> None:
    validator = jsonschema_rs.validator_for(json_schema())
    assert validator.is_valid(WHOLE), [str(error) for error in validator.iter_errors(WHOLE)]
    assert not validator.is_valid({"queues": {"orders": {"maxAttempt": 5}}})
    assert not validator.is_valid({"queue": {}})
    assert not validator.is_valid({"settings": {"maxQueue": 5}})


def test_the_example_of_the_documentation_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "declarations.md").read_text()
    content = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    assert {"queues", "keys", "grants", "quotas"} <= set(parse(content, "shop", "declarations.md").resources)
    assert jsonschema_rs.validator_for(json_schema()).is_valid(content)
