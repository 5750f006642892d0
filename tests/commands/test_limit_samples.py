"""Samples of rate limits: when a limit is new or has changed, and every five minutes."""

from typing import Any, cast

from postroad.commands.capability import CommandsCapability
from postroad.commands.limit_sampler import SAMPLE_MS, LimitSampler
from postroad.commands.records import route_key
from postroad.telemetry.outbox import Outbox
from tests.commands.senders import register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


class Recorded:
    """The limits of one tenant that a sampler records. The engine's own sampler records them, too, at times of its own."""

    def __init__(self, tenant: str) -> None:
        self._tenant, self.limits = tenant, list[int]()

    def record(self, _context: object, event: Any) -> None:
        if event.tenant == self._tenant:
            assert event.interval_seconds == 60
            self.limits.append(event.max)


async def test_a_limit_is_recorded_when_it_is_new_or_has_changed_and_every_five_minutes(gateway: Gateway, tenant: Tenant) -> None:
    table = gateway.node.platform.use(CommandsCapability).route_table
    recorded, moved_ms = Recorded(tenant.id), 0
    sampler = LimitSampler(table, cast(Outbox, recorded), lambda: gateway.clock() + moved_ms)

    async def set_limit(most: int) -> None:
        body = {"queue": "bot-post", "rate_limit": {"max": most, "interval_seconds": 60}}
        (await tenant.client.put("/v1/routes/bot/post", body)).ok()

        def is_known() -> bool:
            found = table.get(route_key(tenant.id, "bot", "post"))
            return found is not None and found.rate_limit is not None and found.rate_limit.max == most

        await eventually(is_known)

    await register_target(tenant)
    await sampler.run_once()
    assert recorded.limits == []
    await set_limit(70)
    await sampler.run_once()
    await sampler.run_once()
    assert recorded.limits == [70]
    await set_limit(80)
    await sampler.run_once()
    await sampler.run_once()
    assert recorded.limits == [70, 80]
    moved_ms = SAMPLE_MS
    await sampler.run_once()
    assert recorded.limits == [70, 80, 80]
