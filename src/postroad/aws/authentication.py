"""Authentication of AWS requests: signatures of access keys and sessions, or a bearer key."""

from dataclasses import dataclass, replace

from postroad.access.authentication import RequestAuthenticator
from postroad.access.aws_keys import AwsKeys
from postroad.access.identity_cache import IdentityCache
from postroad.access.records import AWS_PREFIX, AwsSecret, KeyRecord, earliest
from postroad.aws.errors import AwsError
from postroad.aws.policies import Statement
from postroad.aws.query_protocol import parse_form
from postroad.aws.sessions import SESSION_PREFIX, SessionTokens, key_id_of
from postroad.aws.signatures import (
    ALGORITHM,
    Claim,
    SignedRequest,
    check_claim,
    header_claim,
    is_signed,
    query_claim,
    signing_key,
)
from postroad.http.request import Request
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError, RateLimited
from postroad.kernel.identity import Caller

DEFAULT_REGION = "us-east-1"
_PRESIGNED = b"X-Amz-Algorithm="


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request. `text` is what the operator's hook gets as the credential; `policy` narrows a session."""

    caller: Caller | None
    region: str
    text: str
    policy: tuple[Statement, ...] | None = None
    session_name: str = ""
    role: str = ""


def is_credential_given(request: Request) -> bool:
    return request.header(b"authorization") is not None or _PRESIGNED in request.query_string


class AwsAuthentication:
    def __init__(
        self,
        authenticator: RequestAuthenticator,
        identities: IdentityCache,
        keys: AwsKeys,
        sessions: SessionTokens,
        clock: Clock,
    ) -> None:
        self._authenticator, self._identities, self._keys, self._sessions = authenticator, identities, keys, sessions
        self._clock = clock

    def accepts_large_body(self, request: Request) -> bool:
        """Whether the request names an access key that exists, or has a bearer key, which is checked once the body is read."""
        header = request.header(b"authorization") or ""
        if not header.startswith(ALGORITHM):
            return header[:7].lower() in ("bearer ", "apikey ")
        access_key_id = header.partition("Credential=")[2].partition("/")[0]
        key_id = key_id_of(access_key_id)
        return key_id is not None and self._keys.is_known(access_key_id)

    async def identify(self, request: Request, service: str) -> Identity:
        """The caller of a request whose body was read; None as the caller if a bearer key is unknown.

        Raises AwsError, and RateLimited, TenantDisabled, RegistryStale.
        """
        self._identities.check_fresh()
        header = request.header(b"authorization")
        if header is not None and not header.startswith(ALGORITHM):
            return await self._bearer(request, header)
        if header is not None:
            claim = header_claim(header, request.headers)
        elif _PRESIGNED in request.query_string:
            claim = query_claim(parse_form(request.query_string))
        else:
            raise AwsError("MissingAuthenticationToken", "Request is missing Authentication Token")
        check_claim(claim, service, request.headers, self._clock() / 1000)
        signed = _signed_request(request)
        return await self._session(request, claim, signed) if claim.session_token else await self._key(request, claim, signed)

    def identify_now(self, request: Request, service: str) -> Identity | None:
        """The caller of a request whose key was used before, if it needs no other look-up; None: call `identify`. No effect.

        Raises AwsError and RegistryStale like `identify`, which must be called then.
        """
        self._identities.check_fresh()
        header = request.header(b"authorization")
        if header is None:
            return None
        if not header.startswith(ALGORITHM):
            text = header.partition(" ")[2].strip()
            caller = self._authenticator.identify_key_now(request, text) if _is_bearer(header) else None
            return None if caller is None else Identity(caller, DEFAULT_REGION, text)
        claim = header_claim(header, request.headers)
        record = self._keys.known(claim.access_key_id) if claim.access_key_id.startswith(AWS_PREFIX) else None
        if claim.session_token or record is None or not record.is_active(self._clock()):
            return None
        check_claim(claim, service, request.headers, self._clock() / 1000)
        secret = self._signing_secret(record, claim, _signed_request(request))
        caller = None if secret is None else self._identities.cached_caller_by_aws_secret(record, secret.id)
        return None if caller is None else Identity(caller, claim.region, claim.access_key_id)

    async def _bearer(self, request: Request, header: str) -> Identity:
        text = header.partition(" ")[2]
        if not _is_bearer(header):
            raise AwsError("IncompleteSignature", f"The authorization scheme must be {ALGORITHM} or Bearer.")
        return Identity(await self._authenticator.identify_key(request, text.strip()), DEFAULT_REGION, text.strip())

    async def _key(self, request: Request, claim: Claim, signed: SignedRequest) -> Identity:
        record = await self._record(request, claim)
        secret = self._signing_secret(record, claim, signed)
        if secret is None:
            raise self._failure(request, _mismatch())
        caller = await self._identities.caller_by_aws_secret(record, secret.id)
        if caller is None:
            raise self._unknown(request)
        return Identity(caller, claim.region, claim.access_key_id)

    def _signing_secret(self, record: KeyRecord, claim: Claim, signed: SignedRequest) -> AwsSecret | None:
        """The secret of the key that the request was signed with, None if it was not."""
        now, name = self._clock(), (claim.date, claim.region, claim.service)
        for secret in record.aws:
            if secret.expires_at_ms is not None and secret.expires_at_ms <= now:
                continue
            key = self._keys.derived(record, secret, name, lambda text: signing_key(text, *name))
            if key is not None and is_signed(claim, key, signed):
                return secret
        return None

    async def _session(self, request: Request, claim: Claim, signed: SignedRequest) -> Identity:
        found = self._sessions.read(claim.session_token)
        if found is None or found[0].access_key_id != claim.access_key_id:
            raise self._unknown(request)
        session, secrets = found
        keys = (signing_key(secret, claim.date, claim.region, claim.service) for secret in secrets)
        if not any(is_signed(claim, key, signed) for key in keys):
            raise self._failure(request, _mismatch())
        now = self._clock()
        if session.expires * 1000 <= now:
            raise AwsError("ExpiredToken", "The security token included in the request is expired")
        record = await self._record(request, claim, is_session=True)
        caller = await self._identities.caller_of_session(record)
        if caller is None:
            raise self._unknown(request)
        until = earliest(caller.expires_at_ms, session.expires * 1000)
        return Identity(
            replace(caller, expires_at_ms=until), claim.region, claim.access_key_id, session.policy, session.name, session.role
        )

    async def _record(self, request: Request, claim: Claim, *, is_session: bool = False) -> KeyRecord:
        may_fetch = not self._authenticator.throttle.is_throttled(request.client)
        record = None
        if claim.access_key_id.startswith(SESSION_PREFIX if is_session else AWS_PREFIX):
            record = await self._keys.find(claim.access_key_id, may_fetch=may_fetch)
        if record is None or not (record.aws or is_session) or not record.is_active(self._clock()):
            raise self._unknown(request)
        return record

    def _unknown(self, request: Request) -> PostroadError | AwsError:
        return self._failure(request, AwsError("InvalidClientTokenId", "The security token included in the request is invalid."))

    def _failure(self, request: Request, error: AwsError) -> PostroadError | AwsError:
        """Count a failure. The error to raise: too many requests, or the given one."""
        counted = self._authenticator.throttle.record_failure(request.client, error.message)
        return counted if isinstance(counted, RateLimited) else error


def _is_bearer(header: str) -> bool:
    return header.partition(" ")[0].lower() in ("bearer", "apikey")


def _signed_request(request: Request) -> SignedRequest:
    query = request.query_string.decode("latin-1")
    return SignedRequest(request.method, request.path, query, request.headers, request.body or b"")


def _mismatch() -> AwsError:
    return AwsError(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and "
        "signing method. Consult the service documentation for details.",
    )
