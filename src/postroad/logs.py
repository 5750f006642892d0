"""Structured logs on standard error: text on a terminal, JSON otherwise."""

import logging
import sys

import structlog

from postroad.kernel.spans import log_fields

_MASKED = ("authorization", "key", "secret", "token", "password", "credential")


def _mask(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Mask fields with the name of a secret, as a last defence against logging one."""
    for name in event:
        if name.lower() in _MASKED:
            event[name] = "***"
    return event


def _add_trace(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the ids of the present span, if the work is traced."""
    return {**log_fields(), **event}


def configure_logging(level: str, log_format: str) -> None:
    """`log_format` is `text`, `json` or `auto`: text if standard error is a terminal."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _mask,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
