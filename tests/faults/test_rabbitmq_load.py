"""What the load of the kill test concludes from responses."""

from typing import Any

import pytest

from tests.faults.rabbitmq_load import RabbitLoad


@pytest.mark.parametrize(
    ("status", "body", "is_lost"),
    [(200, {}, False), (409, None, True), (503, None, False), (502, None, False), (0, None, False)],
)
async def test_only_an_ack_that_was_refused_for_certain_leaves_a_message_to_be_delivered(
    monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, Any] | None, is_lost: bool
) -> None:
    load = RabbitLoad(["http://unused"], {}, clients=0)
    load.ledger.published["m"] = "j"

    async def respond(*_: object) -> tuple[int, dict[str, Any] | None]:
        return status, body

    monkeypatch.setattr(load, "send", respond)
    await load._ack("m", "receipt")
    assert load._unsettled(set()) == ({"m"} if is_lost else set())


async def test_an_ack_without_a_response_stays_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    load, statuses = RabbitLoad(["http://unused"], {}, clients=0), iter([503, 409])
    load.ledger.published["m"] = "j"

    async def respond(*_: object) -> tuple[int, None]:
        return next(statuses), None

    monkeypatch.setattr(load, "send", respond)
    for _ in range(2):
        await load._ack("m", "receipt")
    assert load._unsettled(set()) == set()
