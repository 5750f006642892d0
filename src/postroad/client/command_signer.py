"""What a sender keeps: secrets of its services, emit tokens, and the envelopes made with them. Pure, but for the clock."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.api.commands import (
    COMMAND_TYPE,
    CommandAccepted,
    CommandBatchResult,
    CommandInvalid,
    ConfigSecret,
    EmitToken,
    ServiceConfig,
    SourceRefused,
    TenantConfig,
)
from postroad.client.calls import Call, Content
from postroad.client.encoding import segment
from postroad.client.transport import CallSequence
from postroad.kernel.errors import Unauthenticated

_TOKEN_SPARE_SECONDS = 60.0
_STALE_SECRETS = ("version-expired", "version-unknown", "hmac-invalid")
_EXPIRED = "timestamp-expired"
_CLOCK_FAULTS = (_EXPIRED, "timestamp-future")
_WAITED_SECONDS = 1.0  # since it was signed: then a timestamp has expired by waiting

log = logging.getLogger("postroad.commands")


class NewCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to send. `payload` is any value that JSON can express. Keep `id` to send the same command again."""

    target: str
    name: str
    payload: Any = None
    id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))


def envelope(
    command: NewCommand, secret: str, version_id: str, *, source: str | None = None, timestamp: str | None = None
) -> bytes:
    """The signed JSON text of a command; with `source`, it has the signature that covers id, sender and target."""
    payload = msgspec.json.encode(command.payload)
    sent_at, key = timestamp or datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), secret.encode()
    metadata = {
        "id": command.id,
        "timestamp": sent_at,
        "type": COMMAND_TYPE,
        "hmac": payload_hmac(key, payload, sent_at, command.name),
        "version_id": version_id,
    }
    if source is not None:
        metadata["signature"] = command_signature(
            key,
            command_id=command.id,
            source=source,
            target=command.target,
            name=command.name,
            timestamp=sent_at,
            payload=payload,
        )
    body = {"target": command.target, "name": command.name, "payload": msgspec.Raw(payload)}
    return msgspec.json.encode({"metadata": metadata, "command": body})


class CommandSender:
    """Sends with an emit token and the newest secret. Polls the configuration every 12 hours, and after a response that says
    that the secret is not current. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._configs: dict[str, tuple[ServiceConfig, float]] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def send(self, service: str, command: NewCommand) -> "CallSequence[CommandAccepted]":
        """Raises the errors of the API; the envelope is the same in all attempts, unless its secret or token was outdated, or it
        expired while the client waited, as the hints of a rate limit said."""
        started_at, is_last = self._clock(), False
        while True:
            config = yield from self._config(service)
            token = yield from self._token(service)
            secret, signed_at = _current(config), self._clock()
            body = envelope(command, secret.secret, secret.version_id, source=config.source)
            call: Call[CommandAccepted] = Call(
                method="POST",
                path="/v1/commands",
                headers={"Authorization": f"Bearer {token}"},
                body=Content(body, "application/json"),
                response=CommandAccepted,
                started_at=started_at,
            )
            try:
                return (yield call)  # type: ignore[no-any-return]
            except (CommandInvalid, Unauthenticated) as problem:
                if self._has_waited(signed_at) and problem.extra.get("reason") == _EXPIRED:
                    continue
                if is_last or not self._forget(service, problem):
                    raise
                is_last = True

    def send_batch(self, service: str, commands: Sequence[NewCommand]) -> "CallSequence[CommandBatchResult]":
        """Up to 100 commands. Commands that fail because of an outdated secret are in the result; send them again."""
        started_at, is_last = self._clock(), False
        while True:
            config = yield from self._config(service)
            token = yield from self._token(service)
            secret, signed_at = _current(config), self._clock()
            bodies = [msgspec.Raw(envelope(one, secret.secret, secret.version_id, source=config.source)) for one in commands]
            call: Call[CommandBatchResult] = Call(
                method="POST",
                path="/v1/commands/batch",
                headers={"Authorization": f"Bearer {token}"},
                body={"commands": bodies},
                response=CommandBatchResult,
                started_at=started_at,
            )
            try:
                result: CommandBatchResult = yield call
            except Unauthenticated as problem:
                if is_last or not self._forget(service, problem):
                    raise
                is_last = True
                continue
            reasons = {None if one.problem is None else one.problem.reason for one in result.results}
            if reasons == {_EXPIRED} and self._has_waited(signed_at):
                continue
            if not reasons.isdisjoint(_STALE_SECRETS):
                self._configs.pop(service, None)
            return result

    def _has_waited(self, signed_at: float) -> bool:
        """A fresh envelope may be accepted; one that was refused at once shows that the clocks differ."""
        return self._clock() - signed_at >= _WAITED_SECONDS

    def _config(self, service: str) -> "CallSequence[ServiceConfig]":
        known = self._configs.get(service)
        if known is not None and self._clock() < known[1]:
            return known[0]
        found: TenantConfig = yield Call(method="GET", path="/v1/tenant-config", response=TenantConfig)
        for one in found.services:
            self._configs[one.name] = (one, self._clock() + found.poll_seconds)
        if service not in self._configs or all(one.name != service for one in found.services):
            self._configs.pop(service, None)
            raise SourceRefused(f"no service {service!r} trusts this key: add the key's id to its `trustedKeys`")
        return self._configs[service][0]

    def _token(self, service: str) -> "CallSequence[str]":
        known = self._tokens.get(service)
        if known is not None and self._clock() < known[1]:
            return known[0]
        asked_at = self._clock()
        call: Call[EmitToken] = Call(method="POST", path=f"/v1/services/{segment(service)}/token", response=EmitToken)
        issued: EmitToken = yield call
        left = datetime.fromisoformat(issued.expires_at).timestamp() - datetime.now(UTC).timestamp()
        self._tokens[service] = (issued.token, asked_at + max(0.0, left - _TOKEN_SPARE_SECONDS))
        return issued.token

    def _forget(self, service: str, problem: CommandInvalid | Unauthenticated) -> bool:
        """Drop what the problem shows to be outdated; False if it is about something else."""
        if isinstance(problem, Unauthenticated):
            return self._tokens.pop(service, None) is not None
        reason = problem.extra.get("reason")
        if reason in _CLOCK_FAULTS:
            log.warning("the clock of this machine differs too much from the server's: %s", problem.detail)
        return reason in _STALE_SECRETS and self._configs.pop(service, None) is not None


def _current(config: ServiceConfig) -> ConfigSecret:
    return next((one for one in config.secrets if one.is_current), config.secrets[0])
