"""STS operations: the identity of the caller, and temporary credentials with the rights of its key."""

from postroad.aws.calls import Call
from postroad.aws.errors import AwsError
from postroad.aws.model import Values
from postroad.aws.policies import Statement, parse_policy
from postroad.aws.sessions import Session, SessionTokens
from postroad.kernel.clock import Clock
from postroad.kernel.identity import Caller

SECONDS_MIN, SECONDS_MAX = 900, 43_200
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+=,.@-")


class Sts:
    def __init__(self, sessions: SessionTokens, clock: Clock) -> None:
        self._sessions, self._clock = sessions, clock

    async def get_caller_identity(self, call: Call) -> Values:
        identity, caller = call.identity, call.context.caller
        if identity.session_name:
            user, arn = (
                f"{caller.key_id}:{identity.session_name}",
                _session_arn(call.account, identity.role, identity.session_name),
            )
        else:
            user, arn = caller.key_id, f"arn:aws:iam::{call.account}:user/{caller.key_id}"
        return {"UserId": user, "Account": call.account, "Arn": arn}

    async def get_session_token(self, call: Call) -> Values:
        seconds = _seconds(call, SECONDS_MAX)
        return {"Credentials": self._credentials(call, seconds, "", "", None)}

    async def assume_role(self, call: Call) -> Values:
        name, role = call.get("RoleSessionName"), call.get("RoleArn").rpartition("/")[2]
        if not 2 <= len(name) <= 64 or not _NAME_CHARS.issuperset(name):
            raise AwsError("ValidationError", "RoleSessionName must have 2 to 64 letters, digits and '_ + = , . @ -'.")
        if not call.get("RoleArn").startswith(f"arn:aws:iam::{call.account}:role/") or not role:
            raise AwsError(
                "AccessDenied", "The role must be one of the caller's own account: arn:aws:iam::<account>:role/<name>."
            )
        if call.get("PolicyArns"):
            raise AwsError("MalformedPolicyDocumentException", "Managed policies are not supported; use Policy.")
        text = call.get("Policy")
        policy = None if text is None else parse_policy(text)
        credentials = self._credentials(call, _seconds(call, 3600), name, role[:64], policy)
        user = {"AssumedRoleId": f"{call.context.caller.key_id}:{name}", "Arn": _session_arn(call.account, role[:64], name)}
        return {"Credentials": credentials, "AssumedRoleUser": user}

    def _credentials(self, call: Call, seconds: int, name: str, role: str, policy: tuple[Statement, ...] | None) -> Values:
        caller, narrowed = call.context.caller, call.identity.policy
        if policy is None:
            policy = narrowed
        elif narrowed is not None:
            raise AwsError("AccessDenied", "Credentials that a policy narrows cannot be narrowed again.")
        until = _until(caller, self._clock() // 1000 + seconds)
        session = Session(1, caller.key_id, until, name, role, policy)
        token, secret = self._sessions.issue(session)
        return {
            "AccessKeyId": session.access_key_id,
            "SecretAccessKey": secret,
            "SessionToken": token,
            "Expiration": until,
        }


def _seconds(call: Call, default: int) -> int:
    reason = f"DurationSeconds must be between {SECONDS_MIN} and {SECONDS_MAX}."
    value = call.values.get("DurationSeconds", default)
    if not SECONDS_MIN <= value <= SECONDS_MAX:
        raise AwsError("ValidationError", reason)
    return int(value)


def _until(caller: Caller, until: int) -> int:
    """Credentials do not outlive those of the request."""
    return until if caller.expires_at_ms is None else min(until, caller.expires_at_ms // 1000)


def _session_arn(account: str, role: str, name: str) -> str:
    return f"arn:aws:sts::{account}:assumed-role/{role}/{name}"
