"""Responses of a newer server: longer texts, larger numbers, unknown members of enums, unknown fields."""

from typing import Annotated, Any

import httpx
import msgspec
import pytest
from msgspec import Meta

from postroad.client import Job, Queue
from postroad.client.calls import Call
from postroad.client.decoding import decode
from postroad.client.transport import ClientSettings, SyncTransport


class Part(msgspec.Struct):
    text: Annotated[str, Meta(max_length=3)]
    payload: msgspec.Raw = msgspec.Raw(b"null")


class Whole(msgspec.Struct):
    parts: list[Part] = []
    named: dict[str, Part] = {}
    other: Part | int | None = None


def executed(answer: dict[str, Any], kind: Any) -> Any:
    transport = SyncTransport(ClientSettings("http://x", "key"))
    mock = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    transport._client = httpx.Client(transport=mock, base_url="http://x")
    return transport.execute(Call(method="GET", path="/", response=kind))


def test_a_setting_above_the_limits_of_this_sdk_is_decoded() -> None:
    settings = {"visibilityTimeoutMs": 10**15, "geo": "x" * 999, "retryDelaysMs": [10**15] * 999, "newSetting": True}
    answer = {"name": "n" * 999, "settings": settings, "paused": False, "createdAt": "t", "updatedAt": "t"}
    queue = executed(answer, Queue)
    assert isinstance(queue, Queue) and len(queue.name) == 999
    assert (queue.settings.visibility_timeout_ms, len(queue.settings.retry_delays_ms)) == (10**15, 999)


def test_an_unknown_member_of_an_enum_is_its_text() -> None:
    answer = {"jobId": "j", "queue": "q", "status": "parked", "attempts": 1, "createdAt": "t", "updatedAt": "t"}
    job = executed({**answer, "lastError": None, "correlationId": None, "messageId": "m"}, Job)
    assert isinstance(job, Job) and (job.status, job.attempts) == ("parked", 1)


def test_parts_of_lists_objects_and_unions_are_decoded_and_payloads_stay_exact() -> None:
    part = b'{"text": "longer", "payload": 12345678901234567890.10, "more": 1}'
    found = decode(b'{"parts": [%s, {"text": "abc"}], "named": {"x": %s}, "other": %s}' % (part, part, part), Whole)
    assert [one.text for one in (*found.parts, found.named["x"], found.other)] == ["longer", "abc", "longer", "longer"]
    assert bytes(found.parts[0].payload) == b"12345678901234567890.10"


@pytest.mark.parametrize("data", [b'{"parts": [{"text": 5}]}', b'{"parts": [{}]}', b'{"other": "x"}', b"[]"])
def test_a_response_of_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(data, Whole)
