"""AWS Signature Version 4: what a request claims, and whether its signature is the one of a secret. Pure."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

from postroad.aws.errors import AwsError

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_SECONDS = 15 * 60
EXPIRES_SECONDS_MAX = 7 * 86_400
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_HEX = re.compile(r"[0-9a-f]{64}")
_FIELD = re.compile(r"\s*([A-Za-z]+)\s*=\s*([^,\s]+)\s*")
_USUAL = re.compile(ALGORITHM + r" Credential=([^,\s]+), ?SignedHeaders=([^,\s]+), ?Signature=([^,\s]+)")
_PLAIN_PATH = re.compile(r"/|(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+/?")
_SPACES = re.compile(r" {2,}")
_QUERY_NAMES = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature")


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What the signature covers. `path` and `query` are as they were sent; `headers` have lower-case names."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The credential and signature of a request."""

    access_key_id: str
    date: str
    region: str
    service: str
    time: str
    signed_at: float
    signed_headers: tuple[str, ...]
    signature: str
    session_token: str = ""
    expires_seconds: int | None = None  # of a presigned URL

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


@lru_cache(maxsize=256)
def _seconds(time: str) -> float:
    """Raises ValueError."""
    return datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


@lru_cache(maxsize=1024)
def _header_names(signed: str) -> tuple[str, ...]:
    """Raises AwsError."""
    names = tuple(signed.split(";"))
    if list(names) != sorted({name.lower() for name in names}):
        raise _incomplete("SignedHeaders must be lower-case, distinct and in order.")
    return names


def signed_service(authorization: str | None, form: Mapping[str, str]) -> str:
    """The service in the scope of a signature, which is not verified yet; empty without one."""
    credential = (authorization or "").partition("Credential=")[2].partition(",")[0] or form.get("X-Amz-Credential", "")
    parts = credential.split("/")
    return parts[3] if len(parts) == 5 else ""


def header_claim(authorization: str, headers: Mapping[bytes, bytes]) -> Claim:
    """The claim of an `Authorization` header. Raises AwsError."""
    time = headers.get(b"x-amz-date", b"").decode("latin-1")
    token = headers.get(b"x-amz-security-token", b"").decode("latin-1")
    usual = _USUAL.fullmatch(authorization)
    if usual is not None:
        return _claim(usual[1], time, usual[2], usual[3], token, None)
    fields: dict[str, str] = {}
    for part in authorization[len(ALGORITHM) :].split(","):
        found = _FIELD.fullmatch(part)
        if found is None or found[1] in fields:
            raise _incomplete("Authorization header is malformed.")
        fields[found[1]] = found[2]
    missing = [name for name in ("Credential", "Signature", "SignedHeaders") if name not in fields]
    if missing:
        raise _incomplete(f"Authorization header requires '{missing[0]}' parameter.")
    return _claim(fields["Credential"], time, fields["SignedHeaders"], fields["Signature"], token, None)


def query_claim(fields: Mapping[str, str]) -> Claim:
    """The claim of a presigned URL. Raises AwsError."""
    missing = [name for name in _QUERY_NAMES if name not in fields]
    if missing:
        raise _incomplete(f"The query string requires the parameter {missing[0]}.")
    credential, time, expires, signed, signature = (fields[name] for name in _QUERY_NAMES)
    if not (expires.isascii() and expires.isdecimal() and len(expires) < 8) or not 0 < int(expires) <= EXPIRES_SECONDS_MAX:
        raise _incomplete(f"X-Amz-Expires must be between 1 and {EXPIRES_SECONDS_MAX} seconds.")
    return _claim(credential, time, signed, signature, fields.get("X-Amz-Security-Token", ""), int(expires))


def _claim(credential: str, time: str, signed: str, signature: str, token: str, expires: int | None) -> Claim:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise _incomplete("Credential must have the form <access key id>/<date>/<region>/<service>/aws4_request.")
    if not _TIME.fullmatch(time) or not _HEX.fullmatch(signature):
        raise _incomplete("The request requires a valid X-Amz-Date and signature.")
    access_key_id, date, region, service, _ = parts
    try:
        signed_at = _seconds(time)
    except ValueError as exc:  # 99999999T999999Z has the right form
        raise _incomplete("The request requires a valid X-Amz-Date.") from exc
    return Claim(access_key_id, date, region, service, time, signed_at, _header_names(signed), signature, token, expires)


def check_claim(claim: Claim, service: str, headers: Mapping[bytes, bytes], now_seconds: float) -> None:
    """Check everything but the secret. Raises AwsError."""
    if claim.service != service:
        raise AwsError("SignatureDoesNotMatch", f"Credential should be scoped to correct service: '{service}'.")
    if claim.date != claim.time[:8]:
        raise AwsError("SignatureDoesNotMatch", f"Date in Credential scope does not match YYYYMMDD from {claim.time}.")
    signed = claim.signed_headers
    for name in headers:
        if name.startswith(b"x-amz-") and name.decode("latin-1") not in signed:
            raise AwsError("SignatureDoesNotMatch", f"The header '{name.decode('latin-1')[:100]}' must be signed.")
    if "host" not in signed:
        raise AwsError("SignatureDoesNotMatch", "The header 'host' must be signed.")
    age = now_seconds - claim.signed_at
    if age < -SKEW_SECONDS:
        raise AwsError("SignatureDoesNotMatch", f"Signature not yet current: {claim.time} is later than the time of the server.")
    if age > (SKEW_SECONDS if claim.expires_seconds is None else claim.expires_seconds):
        raise AwsError("SignatureDoesNotMatch", f"Signature expired: {claim.time} is too far in the past.")


def signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return key


def is_signed(claim: Claim, key: bytes, request: SignedRequest) -> bool:
    """True if the signature was made with this signing key. In constant time."""
    expected = hmac.digest(key, string_to_sign(claim, request).encode(), hashlib.sha256).hex()
    return hmac.compare_digest(expected, claim.signature)


def string_to_sign(claim: Claim, request: SignedRequest) -> str:
    canonical = canonical_request(claim, request)
    return f"{ALGORITHM}\n{claim.time}\n{claim.scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"


def canonical_request(claim: Claim, request: SignedRequest) -> str:
    lines = []
    for name in claim.signed_headers:
        value = request.headers.get(name.encode(), b"").decode("latin-1").strip()
        lines.append(f"{name}:{_SPACES.sub(' ', value) if '  ' in value else value}\n")
    query = canonical_query(request.query) if request.query else ""
    path = request.path if _PLAIN_PATH.fullmatch(request.path) else canonical_path(request.path)
    signed = ";".join(claim.signed_headers)
    return f"{request.method}\n{path}\n{query}\n{''.join(lines)}\n{signed}\n{hashlib.sha256(request.body).hexdigest()}"


def canonical_path(path: str) -> str:
    """Without dot segments and doubled slashes; encoded once more, as all services but S3 do."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    end = "/" if kept and path.endswith(("/", "/.", "/..")) else ""
    return quote("/" + "/".join(kept) + end, safe="/~")


def canonical_query(query: str) -> str:
    """Sorted and encoded again; without the signature of a presigned URL."""
    pairs = [(name, value) for part in query.split("&") if part for name, _, value in [part.partition("=")]]
    encoded = [(_encoded(name), _encoded(value)) for name, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded) if name != "X-Amz-Signature")


def _encoded(text: str) -> str:
    return quote(unquote(text.replace("+", "%20"), errors="surrogateescape").encode("utf-8", "surrogateescape"), safe="-_.~")


def _incomplete(message: str) -> AwsError:
    return AwsError("IncompleteSignature", message)
