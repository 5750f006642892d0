"""Errors of the data source. Their messages contain no secrets."""


class JetStreamError(Exception):
    """Base class of all errors of this data source."""


class OptionError(JetStreamError, ValueError):
    """An option is missing, unknown or invalid; the message names it."""


class Unreachable(JetStreamError):
    """No server of `url` accepts a connection, or repeated reconnects made no progress."""


class ConnectionLost(JetStreamError):
    """The connection broke or a reply did not arrive in time. The operation can be retried on a new connection."""


class Rejected(JetStreamError):
    """The connection or the request was rejected; a retry would fail the same way."""


class DataLoss(JetStreamError):
    """Messages that were to be read no longer exist."""


class InvalidRow(JetStreamError, ValueError):
    """A row that cannot be published as a message."""
