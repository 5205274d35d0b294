"""The one line of an error that a list, a log line or a row of the user's has room for."""

from __future__ import annotations


def headline(text: str | None) -> str:
    """The line that names an error, out of its traceback or message.

    It need not be the last one: database drivers add where in the SQL it was, and other lines of advice.
    """
    lines = (text or "").strip().splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if starts:
        lines = [line for line in lines[starts[-1] + 1 :] if not line[:1].isspace()] or lines
    elif lines and lines[0].startswith("+ Exception Group Traceback"):
        lines = [line[4:] for line in lines if line.startswith("  | ") and not line[4:5].isspace()]
    return next((line.strip() for line in lines if line.strip() and not line.startswith("… ")), "")
