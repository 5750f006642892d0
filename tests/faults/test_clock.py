"""Gateways whose system clocks are wrong: queues use the engine's time."""

import pytest

from tests.gateway import ShiftedClock, gateway_settings, running_gateway
from tests.waiting import eventually

HOUR_MS = 3_600_000


@pytest.mark.parametrize("shift_ms", [HOUR_MS, -HOUR_MS])
async def test_a_gateway_with_a_wrong_clock_delays_and_leases_by_the_engines_time(engine_url: str, shift_ms: int) -> None:
    settings, wrong = gateway_settings(engine_url), ShiftedClock()
    wrong.ahead_ms = shift_ms
    async with (
        running_gateway(settings, system_clock=wrong) as shifted,
        running_gateway(settings, system_clock=ShiftedClock()) as correct,
    ):
        tenant = await shifted.tenant()
        queue = await tenant.queue()
        await tenant.publish(queue, 1, delayMs=2000)
        assert (await tenant.stats(queue))["delayed"] == 1
        (message,) = await tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=30_000)
        other = correct.seen_by(tenant)
        (await other.ack(queue, message["receiptId"])).ok()

        async def is_empty() -> bool:
            return await other.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}

        await eventually(is_empty)


async def test_a_gateway_is_not_ready_while_its_clock_differs_from_the_engines(engine_url: str) -> None:
    clock = ShiftedClock()
    async with running_gateway(gateway_settings(engine_url), system_clock=clock) as gateway:
        for shift_ms, is_ready in ((0, True), (500, True), (1500, False), (-1500, False), (0, True)):
            clock.ahead_ms = shift_ms
            answer = await gateway.anonymous.get("/readyz")
            assert (answer.status, answer.json["checks"]["clock"]["ok"]) == (200 if is_ready else 503, is_ready), answer.json
        assert abs(gateway.node.platform.clock() - clock()) < 60_000
        clock.ahead_ms = HOUR_MS  # a step of the system's clock
        assert abs(gateway.node.platform.clock() - clock() + HOUR_MS) < 60_000
        metrics = (await gateway.anonymous.get("/metrics")).body.decode()
        assert "postroad_clock_skew_seconds" in metrics
