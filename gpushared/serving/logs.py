"""Write the daemon's log to standard error: lines for people and journald, or JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys

from gpushared.config.model import LogConfig, LogFormat


class JsonFormatter(logging.Formatter):
    """Write one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(config: LogConfig) -> None:
    """Set up the log; call this once, at the start of the process."""
    handler = logging.StreamHandler(sys.stderr)
    if config.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.level.upper(), handlers=[handler])
