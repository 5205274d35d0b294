"""How a worker's log lines look: text for people, JSON lines for machines, each with its job.

Which lines there are is decided where they are written.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

import typer

from rowlock.cli.show import visible
from rowlock.execution.context import JobLogFilter

_LEVELS = ("debug", "info", "warning", "error", "critical")
_FORMATS = ("text", "json")
_RUN = ("job", "task", "claim", "row")  # which run a line is of, as `JobLogFilter` says


def configure(level: str, log_format: str) -> None:
    """Send all log lines to stderr as the options say; a later dictConfig of the user's replaces it."""
    for option, value, allowed in (("level", level, _LEVELS), ("format", log_format, _FORMATS)):
        if value.lower() not in allowed:
            raise typer.BadParameter(f"--log-{option} {value!r}: must be one of {', '.join(allowed)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(JsonLines() if log_format.lower() == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.lower() != "debug":  # a line for each write into a folder: ten per second beside a recorder
        logging.getLogger("watchfiles").setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """`12:00:00.123 INFO shop [job 5 send, claim 1]: message`, followed by the traceback if there is one.

    In a consumer's run it says `[birdnet row 17, claim 5]` instead.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s%(run)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The record as text for people."""
        job, task, claim, row = (getattr(record, name, None) for name in _RUN)
        what = f"{task} row {row}" if row is not None else f"job {job} {task}"
        record.run = f" [{what}, claim {claim}]" if task is not None else ""
        return visible(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, job, task, claim, row, and the error if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name, None) for name in _RUN},
        }
        if line["row"] is None:
            del line["row"]
        # A record from a child process has the traceback as text.
        if trace := self.formatException(record.exc_info) if record.exc_info else record.exc_text:
            line["error"] = trace
        return json.dumps(line)
