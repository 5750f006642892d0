"""Server and key of a command: from the environment, and from profiles in a file that only its owner may read.

    current = "local"

    [profiles.local]
    url = "http://127.0.0.1:8080"
    key = "pr_live_…"
    tenant = "acme"             # only for a platform key
    ca_file = "/etc/postroad/ca.pem"    # verifies the server's certificate; the publicly trusted ones if left out

A profile named by `--profile` overrides the environment. Otherwise POSTROAD_URL, POSTROAD_KEY and POSTROAD_TENANT override the
profile that POSTROAD_PROFILE names, else the current one. POSTROAD_KEY also disables the profile's tenant, which belongs to the
profile's key.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from postroad.runtime.private_files import write_private

DEFAULT_URL = "http://127.0.0.1:8080"
CREDENTIALS = Path("var") / "credentials.toml"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TEXT = re.compile(r"[!#-\[\]-~]+")  # visible ASCII, without the characters that TOML would need escaped


_PATH = re.compile(r'[^"\\\x00-\x1f\x7f]+')


class ProfileError(ValueError):
    """A missing or invalid profile. The message never contains a key."""


@dataclass(frozen=True, slots=True)
class Profile:
    url: str
    key: str = field(repr=False)
    tenant: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or not _TEXT.fullmatch(self.url):
            raise ProfileError("a profile's URL must start with http:// or https://")
        if not _TEXT.fullmatch(self.key):
            raise ProfileError("a key must not be empty and must consist of visible ASCII characters")
        if self.tenant is not None and not _TEXT.fullmatch(self.tenant):
            raise ProfileError("a tenant's id must consist of visible ASCII characters")
        if self.ca_file is not None and not _PATH.fullmatch(self.ca_file):
            raise ProfileError("the path of a CA file must not contain quotes, backslashes or control characters")

    @property
    def masked_key(self) -> str:
        """The key's kind and the beginning of its id, without any of the secret."""
        shown = re.match(r"pr_[a-z]+_.{4}", self.key)
        return f"{shown[0]}…" if shown and len(self.key) > 40 else "…"


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles, and the name of the default one."""

    current: str | None = None
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Raises ProfileError."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ProfileError(f"there is no profile {name!r}; known profiles: {known}")
        return self.by_name[name]

    def with_profile(self, name: str, profile: Profile, *, is_current: bool) -> "Profiles":
        """Add or replace a profile. The first one becomes the default. Raises ProfileError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise ProfileError("a profile's name consists of at most 64 letters, digits, dots, dashes and underscores")
        current = name if is_current or self.current not in self.by_name else self.current
        return Profiles(current, {**self.by_name, name: profile})

    def without(self, name: str) -> "Profiles":
        """Raises ProfileError."""
        self.get(name)
        rest = {other: profile for other, profile in self.by_name.items() if other != name}
        return Profiles(None if self.current == name else self.current, rest)

    def with_default(self, name: str) -> "Profiles":
        """Raises ProfileError."""
        self.get(name)
        return replace(self, current=name)


def profiles_path(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "postroad" / "profiles.toml"


def read_profiles(path: Path | None = None) -> Profiles:
    """Read the file; no file means no profiles. Raises ProfileError if it cannot be read."""
    path = path or profiles_path()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        by_name = {name: _profile(name, fields) for name, fields in found.get("profiles", {}).items()}
    except FileNotFoundError:
        return Profiles()
    except OSError as exc:
        raise ProfileError(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as exc:
        raise ProfileError(f"{path} is not a valid profiles file") from exc
    current = found.get("current")
    return Profiles(current if isinstance(current, str) else None, by_name)


def profile_names() -> list[str]:
    """Names for shell completion, which cannot show errors: none if the file is invalid."""
    try:
        return sorted(read_profiles().by_name)
    except ProfileError:
        return []


def _profile(name: str, fields: Mapping[str, object]) -> Profile:
    url, key, tenant, ca_file = fields.get("url", DEFAULT_URL), fields.get("key"), fields.get("tenant"), fields.get("ca_file")
    if not isinstance(url, str) or not isinstance(key, str):
        raise ProfileError(f"the profile {name!r} needs url and key as strings")
    if not (tenant is None or isinstance(tenant, str)) or not (ca_file is None or isinstance(ca_file, str)):
        raise ProfileError(f"tenant and ca_file of the profile {name!r} are strings")
    return Profile(url, key, tenant, ca_file)


def write_profiles(profiles: Profiles, path: Path | None = None) -> None:
    """Raises ProfileError."""
    lines = ["# Written by `postroad profiles`. Contains keys: do not share it."]
    if profiles.current is not None:
        lines.append(f'current = "{profiles.current}"')
    for name, profile in profiles.by_name.items():
        lines += ["", f'[profiles."{name}"]', f'url = "{profile.url}"', f'key = "{profile.key}"']
        lines += [f'tenant = "{profile.tenant}"'] if profile.tenant else []
        lines += [f'ca_file = "{profile.ca_file}"'] if profile.ca_file else []
    path = (path or profiles_path()).resolve()
    try:
        write_private(path, "\n".join(lines) + "\n")
    except OSError as exc:
        raise ProfileError(f"{path}: {exc.strerror}") from exc


def is_readable_by_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """Options of the root command."""

    profile: str | None = None
    tenant: str | None = None


global_options: ContextVar[GlobalOptions] = ContextVar("global_options")


@dataclass(frozen=True, slots=True)
class Target:
    """The server to call, and the credentials. Without a key only anonymous calls are possible."""

    url: str
    key: str | None = field(repr=False)
    tenant: str | None
    ca_file: str | None = None


def resolve_target(options: GlobalOptions, environ: Mapping[str, str] = os.environ) -> Target:
    """Raises ProfileError."""
    if options.profile is not None:
        profile = read_profiles(profiles_path(environ)).get(options.profile)
        return Target(profile.url, profile.key, options.tenant or profile.tenant, profile.ca_file)
    url, key, tenant, ca_file = (environ.get(f"POSTROAD_{name}") or None for name in ("URL", "KEY", "TENANT", "CA_FILE"))
    found = None if url and key else _default_profile(environ)
    if found is not None:
        tenant = tenant or (None if key else found.tenant)
        ca_file = ca_file or (None if url else found.ca_file)
        url, key = url or found.url, key or found.key
    return Target(url or DEFAULT_URL, key, options.tenant or tenant, ca_file)


def _default_profile(environ: Mapping[str, str]) -> Profile | None:
    profiles = read_profiles(profiles_path(environ))
    name = environ.get("POSTROAD_PROFILE") or profiles.current
    return profiles.get(name) if name else None


def missing_key_hint() -> str:
    hint = "no API key: set POSTROAD_KEY, or add a profile (postroad profiles add NAME)"
    if CREDENTIALS.exists():
        hint += (
            f"\n./{CREDENTIALS}, written by `postroad up`, contains one. To use it:\n"
            f"  postroad profiles add local --key-file {CREDENTIALS}"
        )
    return hint


def environment_key() -> str | None:
    return os.environ.get("POSTROAD_KEY") or None


def environment_url() -> str | None:
    return os.environ.get("POSTROAD_URL") or None


def child_environment() -> dict[str, str]:
    """The environment without Postroad's variables: a child process must not see keys and addresses."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
