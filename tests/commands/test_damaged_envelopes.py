"""Envelopes that were damaged on their way, over HTTP: each is refused with an outcome event, and nothing else is delivered."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.commands.snapshot_cases import DAMAGES
from tests.gateway import Answer, Tenant
from tests.tiers import IS_THOROUGH

CASES = 5_000 if IS_THOROUGH else 200
AT_ONCE = 20
VALUES = (
    *(b"null", b"true", b"-0", b"1e400", b"1" * 400, b"[]", b"{}", b'""', b'"\\ud800"', b'"\xff"', b'"\\u0000"', b"NaN"),
    *(b"[" * 2000, b'{"a":1,"a":2}', b'"' + b"x" * 5000 + b'"', '"\u202e\uffff"'.encode()),
)


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    """On a route that requires a signature, so that each field is covered."""
    await register_target(tenant, signature="required")
    await grant(tenant, "billing")
    return await register_sender(tenant)


def with_another_value(random_: random.Random, original: dict[str, Any]) -> bytes:
    """The envelope with one field replaced, or added under the name of another part."""
    part = random_.choice(["metadata", "command"])
    fields = {name: msgspec.json.encode(value) for name, value in original[part].items()}
    fields[random_.choice([*fields, "source", "signature", "payload", "x"])] = random_.choice(VALUES)
    text = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
    other = "command" if part == "metadata" else "metadata"
    return b'{"%b":{%b},"%b":%b}' % (part.encode(), text, other.encode(), msgspec.json.encode(original[other]))


def damaged(random_: random.Random, original: dict[str, Any]) -> bytes:
    if random_.random() < 0.5:
        return with_another_value(random_, original)
    return random_.choice(DAMAGES)(random_, msgspec.json.encode(original))


def is_same(body: bytes, original: dict[str, Any]) -> bool:
    return bool(msgspec.json.decode(body) == msgspec.json.decode(msgspec.json.encode(original)))


@pytest.mark.usefixtures("both_paths")
async def test_a_damaged_envelope_has_an_outcome_and_delivers_nothing(tenant: Tenant, sender: Sender) -> None:
    random_, original = random.Random(20), envelope(sender.secret, source=sender.source)
    bodies = [damaged(random_, original) for _ in range(CASES)]
    answers: list[Answer] = []
    for start in range(0, CASES, AT_ONCE):
        answers += await asyncio.gather(*[sender.send_raw(body) for body in bodies[start : start + AT_ONCE]])
    for body, answer in zip(bodies, answers, strict=True):
        if answer.status == 202:
            assert is_same(body, original), body
        else:
            assert answer.problem(400, "command-invalid")["reason"], body
    refused = sum(answer.status == 400 for answer in answers)
    assert refused > CASES * 0.9
    events = [one for one in await outcomes(tenant) if one["event"] == "snavio.command.invalid"]
    assert len(events) == refused
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == int(refused < CASES)
