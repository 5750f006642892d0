"""Which server, and by which key: the environment, and profiles kept in a file that only its owner may read.

    current = "local"

    [profiles.local]
    url = "http://127.0.0.1:8080"
    key = "pr_live_…"
    tenant = "acme"             # only for a platform key

What `--profile` names is taken as it is. Otherwise POSTROAD_URL, POSTROAD_KEY and POSTROAD_TENANT win over the profile that
POSTROAD_PROFILE names or that is the current one; with POSTROAD_KEY the profile's tenant does not count, as it goes with its key.
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
_TEXT = re.compile(r"[!#-\[\]-~]+")  # visible ASCII, without what would have to be escaped in the file


class ProfileFault(ValueError):
    """A profile that is not there or cannot be used; the message says which, and never a key."""


@dataclass(frozen=True, slots=True)
class Profile:
    url: str
    key: str = field(repr=False)
    tenant: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or not _TEXT.fullmatch(self.url):
            raise ProfileFault("a profile's URL starts with http:// or https://")
        if not _TEXT.fullmatch(self.key):
            raise ProfileFault("a key has visible characters only, and is not empty")
        if self.tenant is not None and not _TEXT.fullmatch(self.tenant):
            raise ProfileFault("a tenant's id has visible characters only")

    @property
    def masked_key(self) -> str:
        """Enough to tell keys apart, and nothing of the secret: the kind and the beginning of the id."""
        shown = re.match(r"pr_[a-z]+_.{4}", self.key)
        return f"{shown[0]}…" if shown and len(self.key) > 40 else "…"


@dataclass(frozen=True, slots=True)
class Profiles:
    """All of them, and the one that is used when none is named."""

    current: str | None = None
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Raises ProfileFault."""
        if name not in self.by_name:
            known = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none yet"
            raise ProfileFault(f"there is no profile {name!r}: {known}")
        return self.by_name[name]

    def with_profile(self, name: str, profile: Profile, *, is_current: bool) -> "Profiles":
        """The first one becomes the current one, too."""
        if not _NAME.fullmatch(name):
            raise ProfileFault("a profile's name has letters, digits, dots, dashes and underscores, at most 64")
        current = name if is_current or self.current not in self.by_name else self.current
        return Profiles(current, {**self.by_name, name: profile})

    def without(self, name: str) -> "Profiles":
        self.get(name)
        rest = {other: profile for other, profile in self.by_name.items() if other != name}
        return Profiles(None if self.current == name else self.current, rest)

    def using(self, name: str) -> "Profiles":
        self.get(name)
        return replace(self, current=name)


def profiles_path(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "postroad" / "profiles.toml"


def read_profiles(path: Path | None = None) -> Profiles:
    """Raises ProfileFault if the file is there and cannot be read."""
    path = path or profiles_path()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        by_name = {name: _profile(name, fields) for name, fields in found.get("profiles", {}).items()}
    except FileNotFoundError:
        return Profiles()
    except OSError as exc:
        raise ProfileFault(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as exc:
        raise ProfileFault(f"{path} is not a file of profiles") from exc
    current = found.get("current")
    return Profiles(current if isinstance(current, str) else None, by_name)


def _profile(name: str, fields: Mapping[str, object]) -> Profile:
    url, key, tenant = fields.get("url", DEFAULT_URL), fields.get("key"), fields.get("tenant")
    if not isinstance(url, str) or not isinstance(key, str) or not (tenant is None or isinstance(tenant, str)):
        raise ProfileFault(f"the profile {name!r} needs url and key, as texts")
    return Profile(url, key, tenant)


def write_profiles(profiles: Profiles, path: Path | None = None) -> None:
    """Raises ProfileFault."""
    lines = ["# Made by `postroad profiles`. Has keys: keep it to yourself."]
    if profiles.current is not None:
        lines.append(f'current = "{profiles.current}"')
    for name, profile in profiles.by_name.items():
        lines += ["", f'[profiles."{name}"]', f'url = "{profile.url}"', f'key = "{profile.key}"']
        lines += [f'tenant = "{profile.tenant}"'] if profile.tenant else []
    path = (path or profiles_path()).resolve()
    try:
        write_private(path, "\n".join(lines) + "\n")
    except OSError as exc:
        raise ProfileFault(f"{path}: {exc.strerror}") from exc


def is_seen_by_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Choice:
    """What the root command's options say."""

    profile: str | None = None
    tenant: str | None = None


choice: ContextVar[Choice] = ContextVar("choice")


@dataclass(frozen=True, slots=True)
class Target:
    """The server to call. Without a key it can be asked only what needs none."""

    url: str
    key: str | None = field(repr=False)
    tenant: str | None


def target(chosen: Choice, environ: Mapping[str, str] = os.environ) -> Target:
    """Raises ProfileFault."""
    if chosen.profile is not None:
        profile = read_profiles(profiles_path(environ)).get(chosen.profile)
        return Target(profile.url, profile.key, chosen.tenant or profile.tenant)
    url, key, tenant = (environ.get(f"POSTROAD_{name}") or None for name in ("URL", "KEY", "TENANT"))
    found = None if url and key else _default_profile(environ)
    if found is not None:
        tenant = tenant or (None if key else found.tenant)
        url, key = url or found.url, key or found.key
    return Target(url or DEFAULT_URL, key, chosen.tenant or tenant)


def _default_profile(environ: Mapping[str, str]) -> Profile | None:
    profiles = read_profiles(profiles_path(environ))
    name = environ.get("POSTROAD_PROFILE") or profiles.current
    return profiles.get(name) if name else None


def without_key() -> str:
    """What to do about it."""
    said = "no API key: set POSTROAD_KEY, or keep one in a profile (postroad profiles add NAME)"
    if CREDENTIALS.exists():
        said += (
            f"\n./{CREDENTIALS}, which `postroad up` has made, has one. To use it from here on:\n"
            f"  postroad profiles add local --key-file {CREDENTIALS}"
        )
    return said


def environment_key() -> str | None:
    return os.environ.get("POSTROAD_KEY") or None


def environment_url() -> str | None:
    return os.environ.get("POSTROAD_URL") or None


def environment_of_children() -> dict[str, str]:
    """The environment without what is Postroad's: keys and addresses are not for the programs that it starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
