"""A NATS credentials file: who we are (a JWT) and the seed that proves it."""

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from spark_jetstream.errors import OptionError

_PART = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END \1\s*-{3,}")


@dataclass(frozen=True, slots=True)
class Credentials:
    jwt: str = field(repr=False)
    seed: str = field(repr=False)

    def sign(self, nonce: str) -> str:
        """The answer to the server's challenge. The key is used here and kept nowhere."""
        import nkeys

        pair = nkeys.from_seed(self.seed.encode())
        try:
            return base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        finally:
            pair.wipe()


def read_credentials(path: str) -> Credentials:
    """Read a `.creds` file. Raises OptionError, which tells nothing of what is in it."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise OptionError(f"the option 'credentials' names {path}, which cannot be read: {type(exc).__name__}") from None
    parts = dict(_PART.findall(text))
    jwt, seed = parts.get("NATS USER JWT"), parts.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise OptionError(f"the option 'credentials' names {path}, which holds no user JWT with an nkey seed")
    return Credentials(jwt, seed)
