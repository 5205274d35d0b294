"""How an error reads: its text as any database takes it, and the one line of it that a list has room for."""

from __future__ import annotations

import traceback

_MAX_ERROR = 32_768
_TRACEBACK = "Traceback (most recent"


def headline(text: str | None) -> str:
    """The line that names an error, out of its traceback or message.

    It need not be the last one: database drivers add where in the SQL it was, and other lines of advice.
    """
    lines = (text or "").strip().splitlines()
    reason, found, _ = lines[0].partition(_TRACEBACK) if lines else ("", "", "")
    if found and reason.endswith(": "):  # "...; its last error was: Traceback ..."
        return reason + headline("\n".join([_TRACEBACK, *lines[1:]]))
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if starts:
        lines = [line for line in lines[starts[-1] + 1 :] if not line[:1].isspace()] or lines
    elif lines and lines[0].startswith("+ Exception Group Traceback"):
        lines = [line[4:] for line in lines if line.startswith("  | ") and not line[4:5].isspace()]
    return next((line.strip() for line in lines if line.strip() and not line.startswith("… ")), "")


def describe(error: BaseException) -> str:
    """The error with its traceback; `headline` finds the line that names it."""
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # a broken __str__ must not lose the job's outcome
        return f"{type(error).__qualname__} (its message could not be made)"


def storable(text: str) -> str:
    """The text as any database takes it: no NUL, no lone surrogates, the middle cut out when it is long."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= _MAX_ERROR:
        return clean
    half = _MAX_ERROR // 2
    return f"{clean[:half]}\n… {len(clean) - 2 * half} characters left out …\n{clean[-half:]}"
