"""Wiring of tenants, keys, JWT secrets, stream tokens and invites."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.accounts import Accounts
from postroad.access.authentication import RequestAuthenticator
from postroad.access.aws_keys import AwsKeys
from postroad.access.hook import load_hook
from postroad.access.invites import Invites
from postroad.access.jwts import JwtSecrets
from postroad.access.key_service import KeyService
from postroad.access.login_throttle import LoginThrottle
from postroad.access.page_gates import PageGates
from postroad.access.platform_routes import PlatformRoutes
from postroad.access.records import (
    ACCOUNTS_BUCKET,
    ENDED_SESSIONS_BUCKET,
    INVITES_BUCKET,
    KEY_USES_BUCKET,
    KEYS_BUCKET,
    SECRETS_BUCKET,
    TENANTS_BUCKET,
    TOKEN_USES_BUCKET,
    AccountRecord,
    EndedSessionRecord,
    InviteRecord,
    SecretRecord,
)
from postroad.access.routes import AccessRoutes
from postroad.access.settings import AccessSettings
from postroad.access.tenants import Tenants, reserved_words
from postroad.access.tokens import Tokens
from postroad.access.web_session_routes import WebSessionRoutes
from postroad.access.web_sessions import SIGN_IN_LINK, SignInLinks, WebSessions
from postroad.api.access import (
    InviteEnded,
    InviteNotFound,
    KeyNotFound,
    KeyRequired,
    SecretNotFound,
    TenantDisabled,
    TenantNotFound,
)
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.names import TENANT
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role, every

_REENCRYPT_SECONDS = 300.0
_ACCOUNTS_SECONDS = 3600.0
_KEY_ID = {"pattern": "^[0-9A-Za-z]{16}$"}


class AccessCapability(Capability):
    name = "access"
    cli_groups: ClassVar[Mapping[str, str]] = {
        "tokens": "Stream tokens, for live reads where the client cannot send a header. Needs the scope read."
    }
    buckets = (
        TENANTS_BUCKET,
        KEYS_BUCKET,
        SECRETS_BUCKET,
        INVITES_BUCKET,
        KEY_USES_BUCKET,
        TOKEN_USES_BUCKET,
        ACCOUNTS_BUCKET,
        ENDED_SESSIONS_BUCKET,
    )
    errors = (TenantDisabled, TenantNotFound, KeyNotFound, KeyRequired, SecretNotFound, InviteNotFound, InviteEnded)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tenant": {"pattern": f"^{TENANT.pattern}$"},
        "project": {"pattern": f"^{TENANT.pattern}$"},
        "key": {**_KEY_ID, "description": "Key id, as `keys list` shows it; not the text of the key."},
        "invite": {**_KEY_ID, "description": "Invite id, as `invites list` shows it; not the code."},
        "secret": {"format": "uuid"},
    }

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        identities, audit, clock = platform.identities, platform.audit, platform.clock
        chosen = platform.settings.section(AccessSettings)
        self._secret_table = platform.table(SECRETS_BUCKET, SecretRecord)
        self._invite_table = platform.table(INVITES_BUCKET, InviteRecord)
        self.keys = KeyService(identities.keys, identities, platform.tenant_settings, audit, clock)
        self.tenants = Tenants(identities.tenants, self.keys, platform.tenant_settings, audit, clock)
        self.invites = Invites(self._invite_table, self.tenants, self.keys, audit, clock)
        cipher = SecretCipher(platform.platform_keys)
        self.secrets = JwtSecrets(self._secret_table, identities, cipher, audit, clock)
        self.aws_keys = AwsKeys(self.keys, identities.keys, cipher, clock)
        self._account_table = platform.table(ACCOUNTS_BUCKET, AccountRecord)
        self.accounts = Accounts(self._account_table)
        self.tenants.assign_account = self.accounts.of
        uses, store = platform.bucket(TOKEN_USES_BUCKET), platform.committers.storage.store
        self.tokens = Tokens(identities, platform.signer("stream token"), uses, clock, store)
        self._ended_table = platform.table(ENDED_SESSIONS_BUCKET, EndedSessionRecord)
        self.links = SignInLinks(platform.signer(SIGN_IN_LINK), clock)
        self.web_sessions = WebSessions(
            identities,
            platform.signer("web session"),
            self.links,
            self._ended_table,
            uses,
            clock,
            store,
            seconds=chosen.web_session_seconds,
        )
        self._throttle = LoginThrottle(chosen.auth_failures_burst, chosen.auth_failures_per_minute)
        self.authenticator = RequestAuthenticator(
            identities,
            self.tokens,
            self.secrets,
            self._throttle,
            audit,
            web_sessions=self.web_sessions,
            authorize=load_hook(chosen.authorize) if chosen.authorize else None,
            keys_in_urls=chosen.keys_in_urls,
            is_open=chosen.open,
        )
        self._features: tuple[str, ...] = ()
        self.page_gates = PageGates(
            chosen, platform.signer("page gate"), self.links, self._throttle, clock, public_url=platform.settings.public_url
        )

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        identities = self.platform.identities
        return (
            identities.tenants,
            identities.keys,
            self._secret_table,
            self._invite_table,
            self._account_table,
            self._ended_table,
        )

    def routes(self) -> Sequence[Route]:
        platform = self.platform
        own = AccessRoutes(
            platform.identities, self.keys, self.secrets, self.tokens, self.aws_keys, self.accounts, platform.audit
        )
        control = PlatformRoutes(self.tenants, self.invites, self._throttle, platform.clock)
        web = WebSessionRoutes(
            self.web_sessions,
            self.authenticator,
            self.accounts,
            platform.audit,
            platform.clock,
            lambda: self._features,
            public_url=platform.settings.public_url,
        )
        return [*own.table(), *web.table(), *control.table()]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self.platform.identities.key_usage.run),
            BackgroundJob(self.tenants.run_deletions, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_REENCRYPT_SECONDS, self._reencrypt, "re-encrypt secrets"), Role.CONTROL, leader_only=True),
            BackgroundJob(every(_ACCOUNTS_SECONDS, self._assign_accounts, "assign accounts"), Role.CONTROL, leader_only=True),
        )

    async def _reencrypt(self) -> None:
        await self.secrets.reencrypt()
        await self.aws_keys.reencrypt()

    async def _assign_accounts(self) -> None:
        await self.accounts.assign_all(self.platform.identities.tenant_ids())

    def assembled(self, assembly: Assembly) -> None:
        self._features = tuple(sorted(capability.name for capability in assembly.capabilities))
        self.tokens.set_resources(assembly.routes, assembly.resources)
        self.tenants.reserved = reserved_words(route.path for route in assembly.routes)
        self.tenants.deleters = [capability.delete_tenant for capability in reversed(assembly.capabilities)]

    async def delete_tenant(self, tenant: str) -> None:
        await self.secrets.delete_all(tenant)

    async def flush(self) -> None:
        await self.platform.identities.key_usage.flush()


CAPABILITY = AccessCapability
