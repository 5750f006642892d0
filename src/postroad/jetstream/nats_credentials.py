"""How a connection proves who it is: user and password, a token, an nkey, or a JWT of a credentials file."""

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote

import nkeys

_SECTION = r"-+BEGIN {}-+\s+(\S+)\s+-+END {}-+"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files are read at each connect, because they are replaced while a process runs."""

    credentials_file: Path | None = None
    nkey_file: Path | None = None

    def options(self, url: SplitResult, nonce: str) -> dict[str, str]:
        """Fields of the CONNECT command. Raises OSError, ValueError."""
        if self.credentials_file is not None and nonce:
            text = self.credentials_file.read_text()
            return {"jwt": _section(text, "NATS USER JWT"), "sig": _signature(_section(text, "USER NKEY SEED"), nonce)[1]}
        if self.nkey_file is not None and nonce:
            public_key, signature = _signature(self.nkey_file.read_text().strip(), nonce)
            return {"nkey": public_key, "sig": signature}
        if url.username is None:
            return {}
        if url.password is None:
            return {"auth_token": unquote(url.username)}
        return {"user": unquote(url.username), "pass": unquote(url.password)}


def _section(text: str, name: str) -> str:
    found = re.search(_SECTION.format(name, name), text)
    if found is None:
        raise ValueError(f"the credentials file has no section {name}")
    return found.group(1)


def _signature(seed: str, nonce: str) -> tuple[str, str]:
    """Public key, and the nonce signed with the seed."""
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        try:
            return pair.public_key.decode(), base64.b64encode(pair.sign(nonce.encode())).decode()
        finally:
            pair.wipe()
    except nkeys.NkeysError as error:
        raise ValueError("the seed is not a valid nkey") from error
