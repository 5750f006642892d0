"""Structured logs on standard error: text for a person at a terminal, JSON for everything else."""

import logging
import sys

import structlog

_MASKED = ("authorization", "key", "secret", "token", "password", "credential")


def _mask(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The last line of defence: nothing that is called like a secret is written, whoever logs it."""
    for name in event:
        if name.lower() in _MASKED:
            event[name] = "***"
    return event


def set_up_logs(level: str, form: str) -> None:
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
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
