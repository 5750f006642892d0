"""The demo's services: registered with their routes, grants and secrets when a run begins."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from postroad.api.commands import ConfigSecret
from postroad.client import AsyncPostroad
from postroad.demo.command_scenarios import (
    ALERT_CHANNEL,
    ALERT_EVENTS,
    ALERT_RULE,
    ALERT_URL,
    ALERTED,
    NOISY,
    ROUTES,
    SENDERS,
    RouteScenario,
    SenderScenario,
)
from postroad.demo.tenants import DemoTenant

_QUOTA_PER_SECOND = 5  # of the noisy sender, once it has lost the warm path


@dataclass(frozen=True, slots=True)
class DemoServices:
    """The registered services. `tenants` are by the name of their scenario, `secrets` by that of the tenant and the service.
    The events are set when the ban of the noisy sender has begun and ended."""

    tenants: Mapping[str, DemoTenant]
    secrets: Mapping[tuple[str, str], ConfigSecret]
    ban_begun: asyncio.Event = field(default_factory=asyncio.Event)
    ban_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def source(self, sender: SenderScenario) -> str:
        return f"{self.tenants[sender.tenant].id}/{sender.service}"

    def target(self, route: RouteScenario) -> str:
        return f"{self.tenants[route.tenant].id}/{route.service}"

    def owner(self, route: RouteScenario) -> AsyncPostroad:
        return self.tenants[route.tenant].admin


async def register_services(tenants: Sequence[DemoTenant]) -> DemoServices:
    """Services, routes, grants, the quota of the noisy sender, and an alert whose webhook is down. A second run changes only the
    keys that services trust, and grants what was revoked."""
    by_name = {one.scenario.name: one for one in tenants}
    registered = DemoServices(by_name, {})
    for route in ROUTES:
        owner = registered.owner(route)
        await owner.queues.put(route.queue.name, **route.queue.settings)
        await owner.services.put(route.service, description=f"Postroad demo: receives {route.command}")
        await owner.routes.put(route.service, route.command, route.queue.name, **route.settings)
    for sender in SENDERS:
        tenant, route = by_name[sender.tenant], sender.route
        await tenant.admin.services.put(
            sender.service, trusted_keys=[tenant.service_key_id], description=f"Postroad demo: sends {route.command}"
        )
        await registered.owner(route).grants.put(route.service, route.command, registered.source(sender))
    await registered.owner(NOISY.route).quotas.put(
        NOISY.route.service, NOISY.route.command, registered.source(NOISY), _QUOTA_PER_SECOND, interval_seconds=1
    )
    alerted = by_name[ALERTED].admin
    await alerted.alerts.put_channel(ALERT_CHANNEL, "webhook", url=ALERT_URL)
    await alerted.alerts.put_rule(ALERT_RULE, ALERT_EVENTS, severity="warning", channels=[ALERT_CHANNEL])
    return DemoServices(by_name, await _secrets(by_name))


async def _secrets(tenants: Mapping[str, DemoTenant]) -> dict[tuple[str, str], ConfigSecret]:
    """The current secret of each sender, as the run begins."""
    found: dict[tuple[str, str], ConfigSecret] = {}
    for name in {sender.tenant for sender in SENDERS}:
        for one in (await tenants[name].services.services.config()).services:
            found[name, one.name] = next(secret for secret in one.secrets if secret.is_current)
    return found
