"""Access as one thing: its tables, its services, its gate and its routes, put together."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.access.authentication import RequestAuthenticator
from postroad.access.hook import Authorize
from postroad.access.identity_cache import IdentityCache
from postroad.access.invites import Invites
from postroad.access.jwts import JwtSecrets
from postroad.access.key_service import KeyService
from postroad.access.key_usage import KeyUsage
from postroad.access.login_throttle import LoginThrottle
from postroad.access.platform_routes import PlatformRoutes
from postroad.access.records import (
    INVITES_BUCKET,
    KEY_USES_BUCKET,
    KEYS_BUCKET,
    SECRETS_BUCKET,
    TENANTS_BUCKET,
    TOKEN_USES_BUCKET,
    InviteRecord,
    KeyRecord,
    SecretRecord,
    TenantRecord,
)
from postroad.access.routes import AccessRoutes
from postroad.access.tenants import Tenants
from postroad.access.tokens import Tokens
from postroad.crypto.secret_encryption import SecretCipher
from postroad.crypto.signing import Signer
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import SETTINGS_BUCKET, TenantSettings, TenantSettingsRecord, TenantSettingsStore
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock

BUCKETS = (
    TENANTS_BUCKET,
    KEYS_BUCKET,
    SECRETS_BUCKET,
    INVITES_BUCKET,
    SETTINGS_BUCKET,
    KEY_USES_BUCKET,
    TOKEN_USES_BUCKET,
)


@dataclass(frozen=True, slots=True)
class AccessOptions:
    platform_keys: tuple[str, ...]
    initial: TenantSettings
    trust_seconds_max: float = 60.0
    failures_burst: int = 30
    failures_per_minute: float = 30.0
    authorize: Authorize | None = None
    keys_in_urls: bool = False
    is_open: bool = False


class Access:
    def __init__(self, connection: Connection, committers: Committers, clock: Clock, options: AccessOptions) -> None:
        def bucket(name: str) -> Bucket:
            return Bucket(connection, name, committers)

        tenants, keys = ReplicatedTable(bucket(TENANTS_BUCKET), TenantRecord), ReplicatedTable(bucket(KEYS_BUCKET), KeyRecord)
        secrets, invites = (
            ReplicatedTable(bucket(SECRETS_BUCKET), SecretRecord),
            ReplicatedTable(bucket(INVITES_BUCKET), InviteRecord),
        )
        settings = ReplicatedTable(bucket(SETTINGS_BUCKET), TenantSettingsRecord)
        self.tables = (tenants, keys, secrets, invites, settings)
        self.audit = Audit(connection, committers, clock)
        self.tenant_settings = TenantSettingsStore(settings, self.audit, clock, options.initial)
        self.uses = KeyUsage(bucket(KEY_USES_BUCKET), clock)
        self.directory = IdentityCache(tenants, keys, self.uses, clock, trust_seconds_max=options.trust_seconds_max)
        self.keyring = KeyService(keys, self.directory, self.tenant_settings, self.audit, clock)
        self.tenants = Tenants(tenants, self.keyring, self.tenant_settings, self.audit, clock)
        self.invites = Invites(invites, self.tenants, self.keyring, self.audit, clock)
        self.secrets = JwtSecrets(secrets, self.directory, SecretCipher(options.platform_keys), self.audit, clock)
        sealer = Signer(options.platform_keys, "stream token")
        self.tokens = Tokens(self.directory, sealer, bucket(TOKEN_USES_BUCKET), clock)
        guard = LoginThrottle(options.failures_burst, options.failures_per_minute)
        self.gate = RequestAuthenticator(
            self.directory,
            self.tokens,
            self.secrets,
            guard,
            self.audit,
            authorize=options.authorize,
            keys_in_urls=options.keys_in_urls,
            is_open=options.is_open,
        )
        self._routes = (
            AccessRoutes(self.directory, self.keyring, self.uses, self.secrets, self.tokens, self.tenant_settings),
            PlatformRoutes(self.tenants, self.invites, self.tenant_settings, self.audit, guard, clock),
        )

    def routes(self) -> Sequence[Route]:
        return [route for routes in self._routes for route in routes.table()]

    @property
    def out_of_touch_seconds(self) -> float:
        return max(table.staleness_seconds for table in self.tables)
