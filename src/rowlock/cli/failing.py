"""How a command fails: one line on stderr that says what happened and what to do, and an exit code.

Decides nothing about what is a failure; commands and the core do.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from rowlock.cli.show import visible
from rowlock.errors import StoreMissing

ERROR, USAGE, UNREACHABLE, TIMED_OUT = 1, 2, 3, 124


class CommandFailed(Exception):
    """A command cannot do what was asked; the message is for the person at the keyboard."""

    def __init__(self, message: str, code: int = ERROR) -> None:
        super().__init__(message)
        self.code = code


def told(error: Exception) -> str:
    """The error's own words; if there is no queue, also how to name another or to create one."""
    if not isinstance(error, StoreMissing):
        return str(error)
    if "rowlock init" in str(error):
        return f"{error}, or name another with --database or ROWLOCK_DATABASE_URL"
    return f"{error}; name it with --database or ROWLOCK_DATABASE_URL, or create it: rowlock init"


def complain(message: object) -> None:
    """Say on stderr, in one line, what went wrong."""
    _line(f"rowlock: {message}")


def note(message: object) -> None:
    """Say something on stderr that is good to know and not a failure."""
    _line(f"note: {message}")


def _line(text: str) -> None:
    one = visible(" ".join(text.split()))
    # Its reader is gone, or it is closed (a ValueError): there is nowhere left to say that. What cannot be
    # encoded is no such case, because stderr writes it with backslashes.
    with suppress(OSError, ValueError):
        sys.stderr.write(one + "\n")
        sys.stderr.flush()
