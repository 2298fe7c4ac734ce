"""Log lines: text for people, JSON for machines. Tokens are never part of one."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

from server.settings import Settings
from shared.texts import escape_controls, escape_line

__all__ = ["JsonFormatter", "TextFormatter", "logging_config"]


class TextFormatter(logging.Formatter):
    """One line, in which what others wrote obeys no terminal and begins no line; a traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return escape_controls(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at (UTC), level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def logging_config(settings: Settings) -> dict[str, Any]:
    """For ``logging.config.dictConfig``: everything to stderr."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {
                "()": "server.monitoring.logs.TextFormatter",
                "fmt": "%(asctime)s %(levelname)-7s %(name)s: %(message)s",
            },
            "json": {"()": "server.monitoring.logs.JsonFormatter"},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": settings.log_format}},
        "loggers": {
            "feddisco": {"level": level, "handlers": ["stderr"], "propagate": False},
            "uvicorn": {
                "level": max(level, "WARNING", key=_severity),
                "handlers": ["stderr"],
                "propagate": False,
            },
            "uvicorn.access": {"level": "INFO", "handlers": ["stderr"], "propagate": False},
        },
    }


def _severity(level: str) -> int:
    return logging.getLevelNamesMapping()[level]
