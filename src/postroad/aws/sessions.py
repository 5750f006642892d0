"""Temporary credentials: the token says which key they are of and what they allow, and the secret follows from the token.

Nothing is stored. The token is signed, the secret is a digest of it with a key of the installation, and both end with the key.
"""

import base64
import hashlib
import hmac

import msgspec

from postroad.access.keys import ID_CHARS
from postroad.access.records import AWS_PREFIX
from postroad.aws.policies import Statement
from postroad.crypto.signing import SignatureInvalid, Signer

SESSION_PREFIX = "PRAS"
_OWNER = b"aws session"
_SECRET_CHARS = 40


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Format 1 of a session token: the key, the end in seconds, the name of an assumed role's session, and the policy."""

    v: int
    key_id: str
    expires: int
    name: str
    role: str
    policy: tuple[Statement, ...] | None

    @property
    def access_key_id(self) -> str:
        return SESSION_PREFIX + self.key_id


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


class SessionTokens:
    def __init__(self, signer: Signer, platform_keys: tuple[str, ...]) -> None:
        self._signer = signer
        self._keys = [hmac.digest(key.encode(), b"postroad aws session 1", hashlib.sha256) for key in platform_keys]

    def issue(self, session: Session) -> tuple[str, str]:
        """The token and the secret."""
        token = self._signer.sign(_OWNER, _encode(session))
        return token, _secret(self._keys[0], token)

    def read(self, token: str) -> tuple[Session, list[str]] | None:
        """The session of a token and the secrets that it may have been issued with; None if the token is invalid."""
        try:
            session = _decode(self._signer.verify(_OWNER, token))
        except (SignatureInvalid, msgspec.DecodeError):
            return None
        return session, [_secret(key, token) for key in self._keys]


def key_id_of(access_key_id: str) -> str | None:
    """The id of the key of an access key id, long-lived or temporary."""
    is_known = access_key_id.startswith((AWS_PREFIX, SESSION_PREFIX)) and len(access_key_id) == len(AWS_PREFIX) + ID_CHARS
    return access_key_id[len(AWS_PREFIX) :] if is_known else None


def _secret(key: bytes, token: str) -> str:
    return base64.b64encode(hmac.digest(key, token.encode(), hashlib.sha256)).decode()[:_SECRET_CHARS]
