"""What JetStream answers, and what its errors mean here. NATS errors are translated in this module and nowhere else."""

import msgspec

from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, EngineUnavailable, PostroadError, TooLarge


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    """The answer to a publish, or to a batch's commit: then `seq` is the last message's and `count` how many there are."""

    seq: int = 0
    duplicate: bool = False
    count: int = 0
    error: ApiError | None = None


decode_pub_ack = msgspec.json.Decoder(PubAck).decode

# JetStream error codes (server/errors.json of nats-server), by what they mean to a caller.
WRONG_LAST_SEQUENCE = {10071, 10070, 10164}
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
NO_SUCH_MESSAGE = {10037, 10043, 10057}  # by sequence: none found, invalid, or already deleted
STREAM_NAME_IN_USE = 10058
_FULL = {10077, 10023, 10047, 10028, 10122, 10002}  # limits of the stream, memory, storage, account
_TOO_LARGE = {10054, 10097}
_NOT_NOW = {10008, 10009, 10003, 10005, 10167, 10208}  # no JetStream, no leader, no peers, too busy
_NOT_NOW |= {10158}  # the same message is on its way, from an earlier try: a cluster cannot say yet where it will be


def translate(error: ApiError) -> PostroadError:
    words = f"{error.description} ({error.err_code})"
    if error.err_code in WRONG_LAST_SEQUENCE:
        return Conflict(words)
    if error.err_code in _FULL:
        return EngineFull(words, retry_after=5)
    if error.err_code in _TOO_LARGE:
        return TooLarge(words)
    if error.err_code in _NOT_NOW or error.code == 503:
        return EngineUnavailable(words, retry_after=1)
    return EngineRefused(words)


class ApiFailure(Exception):
    """A JetStream API call was answered with an error that its caller may want to tell apart by its code."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error
