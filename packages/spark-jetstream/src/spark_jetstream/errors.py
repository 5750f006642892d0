"""What can go wrong between Spark and a NATS server. No message ever holds a secret."""


class JetStreamError(Exception):
    """Base of all errors of this data source."""


class OptionError(JetStreamError, ValueError):
    """An option is missing, unknown or not as it should be; the message names it."""


class Unreachable(JetStreamError):
    """No server of `url` could be reached, or the connection was lost too often without progress."""


class ConnectionLost(JetStreamError):
    """The connection broke or the server fell silent. What was asked may be asked again on another connection."""


class Refused(JetStreamError):
    """The server answered, and the answer is no: asking again would not help."""


class DataLoss(JetStreamError):
    """Messages that should have been read are no longer there."""


class InvalidRow(JetStreamError, ValueError):
    """A row that cannot become a message."""
