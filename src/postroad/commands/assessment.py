"""Assessment of a command by what the worker has in memory: the sender, the shield, bans and the fast stage. Without effect."""

import time

import msgspec

from postroad.api.commands import SourceRefused
from postroad.commands import fast, shield
from postroad.commands.arrival import Arrival
from postroad.commands.ban_view import BanView
from postroad.commands.fast import CacheAges, Dispatch, Escalate, Escalation, Repeat
from postroad.commands.limit_records import BanRecord
from postroad.commands.registry_cache import RegistryCache
from postroad.commands.registry_view import Sender
from postroad.commands.replay_mark import ReplayMark
from postroad.commands.rules import Phase
from postroad.commands.shield import Accepted, Invalid, ShieldPolicy
from postroad.commands.warm_state import WarmState
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import Caller, Credential

_CREDENTIALS = (Credential.KEY, Credential.EMIT, Credential.REPLAY)


class Beginning(msgspec.Struct, frozen=True):
    """When a command arrived, and how old the caches were then."""

    context: RequestContext
    body: bytes
    replay: ReplayMark | None
    started: float
    now_ms: int
    ages: CacheAges
    secrets_phase: Phase


class Assessed(msgspec.Struct, frozen=True):
    """What memory says about a command. `found` is None if the shield or a ban, which is set then, refuses it."""

    begun: Beginning
    arrival: Arrival
    command: Accepted | Invalid
    found: Dispatch | Escalate | Repeat | Invalid | None = None
    ban: BanRecord | None = None


class Assessor:
    def __init__(
        self,
        cache: RegistryCache,
        warm: WarmState,
        bans: BanView,
        tenant_settings: TenantSettingsStore,
        clock: Clock,
        policy: ShieldPolicy,
    ) -> None:
        self._cache, self._warm, self._bans = cache, warm, bans
        self._tenant_settings, self._clock, self._policy = tenant_settings, clock, policy

    def begin(self, context: RequestContext, body: bytes, replay: ReplayMark | None = None) -> Beginning:
        ages = self._cache.ages()
        phase = self._cache.policy.secrets.phase(ages.secrets)
        return Beginning(context, body, replay, time.perf_counter(), self._clock(), ages, phase)

    def assess(self, begun: Beginning, service: str) -> Assessed | None:
        """None if the engine must be asked for the sender. Raises SourceRefused."""
        if begun.secrets_phase is Phase.EXPIRED:
            return None
        caller = begun.context.caller
        sender = self._cache.view.sender(begun.context.tenant, service)
        if sender is None or not _is_trusted(sender, caller):  # perhaps registered a moment ago
            return None
        self.check_trust(caller, service, sender)
        return self.inspect(begun, sender, None)

    def check_trust(self, caller: Caller, service: str, sender: Sender | None) -> Sender:
        """The sender. Raises SourceRefused; with the same detail whether the service exists or not."""
        if caller.credential is Credential.KEY and not self._tenant_settings.of(caller.tenant).commands_by_key:
            raise SourceRefused("the tenant's setting `commandsByKey` is off: send commands with an emit token")
        is_kind = caller.credential in _CREDENTIALS and caller.service in (None, service)
        if sender is None or not is_kind or not _is_trusted(sender, caller) or not caller.may_use("service", service):
            raise SourceRefused(f"the service {service[:64]!r} does not trust this key: add its id to `trustedKeys`")
        return sender

    def inspect(self, begun: Beginning, sender: Sender, escalated: Escalation | None) -> Assessed:
        """Let the shield and the fast stage decide. `escalated`: why the sender was read from the engine, if it was."""
        now, body = begun.now_ms, begun.body
        command = shield.inspect(body, sender, now, self._policy)
        arrival = Arrival(begun.context, sender, now, begun.started, escalated, body, begun.replay)
        if isinstance(command, Invalid):
            return Assessed(begun, arrival, command)
        ban = self._bans.find(sender.source, command.target_tenant, command.target_service, command.name, now)
        if ban is not None and ban.kind == "hard":
            return Assessed(begun, arrival, command, ban=ban)
        ages = begun.ages
        if escalated is Escalation.CACHE_EXPIRED:  # the secrets were just read
            ages = CacheAges(ages.routes, 0.0)
        is_cold_only = self._tenant_settings.of(sender.tenant).snavio_dispatch_mode == "cold-only"
        cache, warm = self._cache, self._warm
        found = fast.decide(
            command, sender.source, cache.view, ages, now, cache.policy, ban=ban, is_cold_only=is_cold_only, warm=warm
        )
        return Assessed(begun, arrival, command, found, ban)


def _is_trusted(sender: Sender, caller: Caller) -> bool:
    return caller.key_id in sender.trusted_keys or caller.credential is Credential.REPLAY
