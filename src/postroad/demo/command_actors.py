"""Senders of the demo's commands, what happens to them, and readers of telemetry."""

import contextlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from postroad.api.command_limits import BanNotFound, FairnessViolation
from postroad.api.commands import CommandResult
from postroad.client.command_signer import NewCommand, envelope
from postroad.client.errors import GrantNotFound, LeaseExpired
from postroad.demo.clock import DemoClock
from postroad.demo.command_plan import PlannedCommand, plan_commands
from postroad.demo.command_scenarios import BAN, SenderScenario
from postroad.demo.counters import QueueCounters, ServiceCounters, TenantCounters
from postroad.demo.services import DemoServices
from postroad.demo.tenants import DemoTenant

_BATCH_MAX = 100
_OVERLAP_SECONDS = 86_400  # for which a rotated secret stays valid: short enough for the warning that it expires soon
_AGAIN_SECONDS = 0.2
_READ_SECONDS = 2.0
_FOLLOW_SECONDS = 0.7  # until every gateway knows of a ban, or of its end
_BAN_MARGIN_SECONDS = 10.0


async def send(
    clock: DemoClock, services: DemoServices, sender: SenderScenario, counters: ServiceCounters, received: QueueCounters
) -> None:
    """Send the planned commands at their times, with the secret that the run began with; those due together go in one call.
    `received` are the counters of the queue of the route."""
    planned = plan_commands(clock.seed, sender, clock.seconds, clock.rate)
    sent = 0
    while sent < len(planned) and await clock.wait_until(planned[sent].at):
        if sender is BAN.sender and not await _wait_for_ban(clock, services, planned[sent].at):
            return
        due = _due(planned[sent : sent + _BATCH_MAX], clock.now)
        sent += len(due)
        await _send_batch(clock, services, sender, due, counters, received)


async def _wait_for_ban(clock: DemoClock, services: DemoServices, at: float) -> bool:
    """On a slow machine, too, commands that are planned for the time of the ban are sent during it, and later ones after it."""
    if at >= BAN.ends * clock.seconds:
        return await clock.wait_for(services.ban_ended)
    return at < BAN.begins * clock.seconds or await clock.wait_for(services.ban_begun)


def _due(planned: Sequence[PlannedCommand], now: float) -> list[PlannedCommand]:
    """Those to send now; the repetition of a command is not in the same batch, which has no order."""
    found: dict[int, PlannedCommand] = {}
    for one in planned:
        if one.at > now or one.number in found:
            break
        found[one.number] = one
    return list(found.values())


async def _send_batch(
    clock: DemoClock,
    services: DemoServices,
    sender: SenderScenario,
    due: Sequence[PlannedCommand],
    counters: ServiceCounters,
    received: QueueCounters,
) -> None:
    """Commands that the server could not decide on, because its engine was away, are sent again; they have no outcome."""
    client = services.tenants[sender.tenant].services
    left = [_envelope(clock, services, sender, one) for one in due]
    while left and not clock.is_ended:
        await clock.throttle()
        batch = await client.commands.send_envelopes(left, service=sender.service)
        for result in batch.results:
            _count(result, counters, received)
        left = [one for one, result in zip(left, batch.results, strict=True) if _is_undecided(result)]
        if left:
            await clock.sleep(_AGAIN_SECONDS)


def _envelope(clock: DemoClock, services: DemoServices, sender: SenderScenario, planned: PlannedCommand) -> bytes:
    secret = services.secrets[sender.tenant, sender.service]
    sent_at = datetime.now(UTC) - timedelta(seconds=planned.behind_seconds)
    command = NewCommand(
        target=services.target(sender.route),
        name=sender.route.command,
        payload={"number": planned.number, "text": planned.text},
        id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{clock.run}:{sender.service}:{planned.number}")),
    )
    text = sent_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return envelope(command, secret.secret, secret.version_id, source=services.source(sender), timestamp=text)


def _is_undecided(result: CommandResult) -> bool:
    return result.problem is not None and result.problem.reason is None


def _count(result: CommandResult, counters: ServiceCounters, received: QueueCounters) -> None:
    if _is_undecided(result):
        return
    counters.counts["sent"] += 1
    if result.problem is not None:
        counters.counts["invalid" if result.problem.code == "command-invalid" else "failed"] += 1
        counters.reasons[result.problem.reason or ""] += 1
    elif result.is_duplicate:
        counters.counts["duplicate"] += 1
    else:
        counters.counts["delivered"] += 1
        received.counts["published"] += 1


async def ban(clock: DemoClock, services: DemoServices, counters: ServiceCounters) -> None:
    """The owner of the route refuses the commands of the noisy sender for a while: until some were refused."""
    route, owner = BAN.sender.route, services.owner(BAN.sender.route)
    if not await clock.wait_until(BAN.begins * clock.seconds):
        return
    await clock.throttle()
    seconds = round((BAN.ends - BAN.begins) * clock.seconds + _BAN_MARGIN_SECONDS)
    begun = await owner.bans.create(
        services.source(BAN.sender), "hard", BAN.reason, target=route.service, command=route.command, duration_seconds=seconds
    )
    await clock.sleep(_FOLLOW_SECONDS, until_drain=True)
    services.ban_begun.set()
    ends_at = BAN.ends * clock.seconds
    while await clock.wait_until(ends_at) and not counters.reasons[FairnessViolation.code] and clock.now < ends_at + 5:
        await clock.sleep(_AGAIN_SECONDS, until_drain=True)
    with contextlib.suppress(BanNotFound):  # it has ended on its own
        await owner.bans.delete(begun.id)
    await clock.sleep(_FOLLOW_SECONDS, until_drain=True)
    services.ban_ended.set()


async def rotate(clock: DemoClock, services: DemoServices, sender: SenderScenario, at: float) -> None:
    """Rotate the secret of a sender that goes on with the previous one."""
    if await clock.wait_until(at * clock.seconds):
        await clock.throttle()
        await services.tenants[sender.tenant].admin.services.rotate(sender.service, overlap_seconds=_OVERLAP_SECONDS)


async def revoke(clock: DemoClock, services: DemoServices, sender: SenderScenario, at: float) -> None:
    """Revoke the grant of a sender that goes on to send."""
    if await clock.wait_until(at * clock.seconds):
        await clock.throttle()
        with contextlib.suppress(GrantNotFound):  # an earlier attempt of the call has revoked it
            await services.owner(sender.route).grants.delete(sender.route.service, sender.route.command, services.source(sender))


async def read_telemetry(clock: DemoClock, tenant: DemoTenant, counters: TenantCounters) -> None:
    """Read the tenant's telemetry queue until the run drains."""
    while not clock.is_draining:
        await clock.throttle()
        with contextlib.suppress(LeaseExpired):  # on a slow machine: what was not acknowledged in time comes again
            async for _ in tenant.client.telemetry.consume(stop_when_empty=True):
                counters.counts["telemetryRead"] += 1
        await clock.sleep(_READ_SECONDS, until_drain=True)
