"""Rules of commands: identities, ages of caches, versions of secrets. Pure."""

import zlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from postroad.kernel.names import SERVICE, TENANT

EXPIRY_IMMINENT_MS = 48 * 3_600_000
SKEW_NEAR_SHARE = 0.8
_SAMPLE_OF = 100
JITTER = 0.1


class Phase(StrEnum):
    FRESH = "fresh"
    STALE = "stale"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Ages:
    """Limits on the age of cached data: used as it is below `fresh`, used and refreshed below `stale`. `bound` is absolute."""

    fresh: float
    stale: float
    bound: float

    def phase(self, age_seconds: float) -> Phase:
        if age_seconds < self.fresh:
            return Phase.FRESH
        return Phase.STALE if age_seconds < self.stale else Phase.EXPIRED

    def with_jitter(self, factor: float) -> "Ages":
        """Spread the refreshes of several workers. The bound does not change."""
        return Ages(self.fresh * factor, min(self.stale * factor, self.bound), self.bound)


def ages_of(text: str) -> Ages:
    """`fresh,stale,bound` in seconds. Raises ValueError."""
    fresh, stale, bound = (float(part) for part in text.split(","))
    if not 0 < fresh <= stale <= bound < float("inf"):
        raise ValueError(f"not ascending: {text!r}")
    return Ages(fresh, stale, bound)


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Ages of the caches of one worker. `profiles` are those of the sensitivities, `grants` the default."""

    routes: Ages
    grants: Ages
    secrets: Ages
    profiles: dict[str, Ages]

    def of_grant(self, route_sensitivity: str | None, grant_sensitivity: str | None) -> Ages:
        """The narrower one of the ages for the route and for the grant."""
        of_route = self.profiles.get(route_sensitivity or "", self.grants)
        if grant_sensitivity is None:
            return of_route
        return min(of_route, self.profiles.get(grant_sensitivity, of_route), key=lambda ages: ages.bound)

    def with_jitter(self, routes: float, grants: float, secrets: float) -> "CachePolicy":
        return CachePolicy(
            self.routes.with_jitter(routes),
            self.grants.with_jitter(grants),
            self.secrets.with_jitter(secrets),
            {name: ages.with_jitter(grants) for name, ages in self.profiles.items()},
        )


def source_of(tenant: str, service: str) -> str:
    """The identity of a service."""
    return f"{tenant}/{service}"


@lru_cache(maxsize=4096)
def target_of(tenant: str, text: str) -> tuple[str, str] | None:
    """Tenant and service that a text names: `<service>` of the given tenant, or `<tenant>/<service>`. None if it is neither."""
    owner, slash, service = text.rpartition("/")
    if not slash:
        owner = tenant
    return (owner, service) if SERVICE.fullmatch(service) and TENANT.fullmatch(owner) else None


def grant_source(tenant: str, text: str) -> str | None:
    """The sender in a grant, in full: `<tenant>/<service>` or `<tenant>/*`. None if the text names none."""
    owner, slash, service = text.rpartition("/")
    if not slash:
        owner = tenant
    is_valid = TENANT.fullmatch(owner) and (service == "*" or SERVICE.fullmatch(service))
    return f"{owner}/{service}" if is_valid else None


def version_id(number: int) -> str:
    return f"hmac-v{number}"


def is_sampled(command_id: str) -> bool:
    """True for one in a hundred commands, always the same ones."""
    return zlib.crc32(command_id.encode()) % _SAMPLE_OF == 0
