"""The SDK decodes responses of servers of earlier versions: fields that were added since have defaults."""

import importlib
import json
from pathlib import Path

import msgspec
import pytest

from postroad.api.access import Key, WhoAmI
from postroad.kernel.identity import ALL_RESOURCES

# Recorded from the structs of two earlier versions, with the fields that their servers always sent. Append those of later ones.
_RECORDED = [json.loads(line) for line in (Path(__file__).parent / "older_responses.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recorded", _RECORDED, ids=lambda recorded: recorded["type"])
def test_a_response_of_an_older_server_is_decoded(recorded: dict[str, object]) -> None:
    module, _, name = str(recorded["type"]).rpartition(".")
    kind = getattr(importlib.import_module(f"postroad.api.{module}"), name)
    assert isinstance(msgspec.json.decode(json.dumps(recorded["response"]), type=kind), kind)


@pytest.mark.parametrize("kind", [Key, WhoAmI])
def test_a_key_of_a_server_without_buckets_is_not_restricted_to_some(kind: type[Key] | type[WhoAmI]) -> None:
    [response, *_] = [one["response"] for one in _RECORDED if one["type"] == f"access.{kind.__name__}"]
    assert "allowedBuckets" not in response
    decoded = msgspec.convert(response, kind)
    assert decoded.allowed_buckets == ALL_RESOURCES
    assert msgspec.to_builtins(decoded)["allowedBuckets"] == ("*",), "this version always sends it"
