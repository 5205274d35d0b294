"""Log records of a child process go to the loggers of the same name in its parent, whose set-up decides.

Messages are formatted in the child, and what is attached to a record crosses as plain values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rowlock.error_text import storable

# Sent as text of their own, or made anew by whoever formats the record.
_NOT_SENT = {"args", "msg", "exc_info", "exc_text", "stack_info", "message", "asctime"}
_PLAIN = (str, int, float, bool, type(None))


def levels() -> dict[str, int]:
    """The levels that are set in this process, by logger; the root's name is empty."""
    known = logging.root.manager.loggerDict
    found = {name: one.level for name, one in known.items() if isinstance(one, logging.Logger) and one.level}
    return found | {"": logging.root.level}


def forward(say: Callable[[dict[str, Any]], None], given: dict[str, int]) -> None:
    """In the child, after its imports: whatever handlers they have set up, records go to the parent."""
    for one in list(logging.root.manager.loggerDict.values()):  # a thread of the app's may add some
        if isinstance(one, logging.Logger):
            one.handlers.clear()
            one.propagate = True  # whether it goes further is for the parent's logger to say
    logging.root.handlers[:] = [_Forwarder(say)]
    for name, level in given.items():
        logging.getLogger(name or None).setLevel(level)


def receive(fields: dict[str, Any]) -> None:
    """In the parent: let its own loggers have the record."""
    logger = logging.getLogger(fields["name"])
    record = logging.makeLogRecord(fields)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class _Forwarder(logging.Handler):
    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(_fields(record))
        except Exception:
            self.handleError(record)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {
        name: value if isinstance(value, _PLAIN) else storable(repr(value))
        for name, value in record.__dict__.items()
        if name not in _NOT_SENT
    }
    if record.exc_info:
        fields["exc_text"] = storable(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        fields["stack_info"] = storable(record.stack_info)
    return fields | {"msg": storable(record.getMessage())}
