"""JetStream's responses, and the translation of its errors. NATS errors are translated in this module only."""

import msgspec

from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, EngineUnavailable, PostroadError, TooLarge


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    """Response to a publish, or to the commit of a batch: then `seq` is that of the last message and `count` their number."""

    seq: int = 0
    duplicate: bool = False
    count: int = 0
    error: ApiError | None = None


decode_pub_ack = msgspec.json.Decoder(PubAck).decode

# JetStream error codes (server/errors.json of nats-server), by their meaning to a caller.
WRONG_LAST_SEQUENCE = {10071, 10070, 10164}
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
NO_SUCH_MESSAGE = {10037, 10043, 10057}  # by sequence: none found, invalid, or already deleted
STREAM_NAME_IN_USE = 10058
_FULL = {10077, 10023, 10047, 10028, 10122, 10002}  # limits of the stream, memory, storage, account
_NO_SPACE = "no space left on device"  # in the description of any error; it names files of the server, too
_TOO_LARGE = {10054, 10097}
_UNAVAILABLE = {10008, 10009, 10003, 10005, 10167, 10208}  # no JetStream, no leader, no peers, too busy
_NO_PEERS = 10005
STREAM_MOVE_AND_SCALE = 10123
_STREAM_MOVES = {10124, 10226}  # or is scaled, and cannot be changed until then
# Perhaps: while a cluster forms its leader does not know all servers.
PLACEMENT_REFUSED_FOR_NOW = {_NO_PEERS, STREAM_MOVE_AND_SCALE, *_STREAM_MOVES}
NO_RESPONDERS = "no responders"  # of NATS: no server is subscribed to the subject, so no leader exists
_UNAVAILABLE |= {STREAM_MOVE_AND_SCALE, *_STREAM_MOVES}
_UNAVAILABLE |= {10158}  # an earlier attempt of the same message is being replicated: its position is not known yet


def translate(error: ApiError) -> PostroadError:
    detail = f"{error.description} ({error.err_code})"
    if error.err_code in WRONG_LAST_SEQUENCE:
        return Conflict(detail)
    if _NO_SPACE in error.description:
        return EngineFull(f"the disk of the engine is full ({error.err_code})", retry_after=5)
    if error.err_code in _FULL:
        return EngineFull(detail, retry_after=5)
    if error.err_code in _TOO_LARGE:
        return TooLarge(detail)
    if error.err_code == _NO_PEERS and ("tags not matched" in error.description or "tags excluded" in error.description):
        return EngineRefused(detail)
    if error.err_code in _UNAVAILABLE or error.code == 503:
        return EngineUnavailable(detail, retry_after=1)
    return EngineRefused(detail)


class ApiFailure(Exception):
    """An error response of the JetStream API, untranslated for callers that distinguish its codes."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error
