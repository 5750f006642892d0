"""NATS credentials file: a user JWT and the nkey seed that signs the server's nonce."""

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path

from spark_jetstream.errors import OptionError

_SECTION = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END \1\s*-{3,}")


@dataclass(frozen=True, slots=True)
class Credentials:
    jwt: str = field(repr=False)
    seed: str = field(repr=False)

    def sign(self, nonce: str) -> str:
        """Sign the server's nonce. The key pair is wiped afterwards."""
        import nkeys

        pair = nkeys.from_seed(self.seed.encode())
        try:
            return base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        finally:
            pair.wipe()


def read_credentials(path: str) -> Credentials:
    """Read a `.creds` file. Raises OptionError, whose message contains nothing of the file."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise OptionError(f"option 'credentials' names {path}, which cannot be read: {type(exc).__name__}") from None
    sections = dict(_SECTION.findall(text))
    jwt, seed = sections.get("NATS USER JWT"), sections.get("USER NKEY SEED")
    if jwt is None or seed is None:
        raise OptionError(f"option 'credentials' names {path}, which contains no user JWT with an nkey seed")
    return Credentials(jwt, seed)
