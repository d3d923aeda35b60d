"""A node's log: one JSON object a line, with group and node on each.

Owns how records are rendered; who logs uses the standard ``logging`` module, so that code under the simulator needs nothing of this.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from dledger_wire.printable import printable_json


def _text(event: object, default: Callable[[Any], Any] | None = None) -> str:
    """Nothing in a log line can move the cursor of who reads it, or look like another line."""
    return printable_json(event, default=default)


def configure_logging(*, group: str, node: str, log_file: str = "", level: int = logging.INFO) -> None:
    """Send every record of this process to ``log_file`` or stderr."""

    def add_place(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {"group": group, "node": node, **event}

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        add_place,
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer(serializer=_text)],
    )
    handler: logging.Handler = logging.FileHandler(log_file, encoding="utf-8") if log_file else logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
