"""NATS credentials: a user JWT with the nkey seed that signs the server's nonce, or the seed alone."""

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from spark_jetstream.errors import OptionError

_SECTION = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END \1\s*-{3,}")
_SEED = re.compile(r"SU[A-Z2-7]{56}")


@dataclass(frozen=True, slots=True)
class Credentials:
    seed: str = field(repr=False)
    jwt: str | None = field(default=None, repr=False)

    def connect_fields(self, nonce: str) -> dict[str, str]:
        """Fields of the CONNECT line: the JWT or the public key, and the signature of the server's nonce.

        The key pair is wiped afterwards.
        """
        import nkeys

        pair = nkeys.from_seed(self.seed.encode())
        try:
            identity = {"nkey": pair.public_key.decode()} if self.jwt is None else {"jwt": self.jwt}
            return {**identity, "sig": base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()}
        finally:
            pair.wipe()


def read_credentials(path: str) -> Credentials:
    """Read a `.creds` file. Raises OptionError, whose message contains nothing of the file."""
    sections = dict(_SECTION.findall(_read("credentials", path)))
    jwt, seed = sections.get("NATS USER JWT"), sections.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise OptionError(f"option 'credentials' names {path}, which contains no user JWT with an nkey seed")
    return Credentials(seed, jwt)


def read_nkey(path: str) -> Credentials:
    """Read a file with the seed of an nkey user. Raises OptionError, whose message contains nothing of the file."""
    seed = _read("nkey", path).strip()
    if not _SEED.fullmatch(seed):
        raise OptionError(f"option 'nkey' names {path}, which contains no nkey seed of a user")
    return Credentials(seed)


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise OptionError(f"option '{option}' names {path}, which cannot be read: {type(exc).__name__}") from None
