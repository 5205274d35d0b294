"""One result of the doctor, and the verdicts that its checks come to.

The checks are in the modules beside it, and in the rooms that have something of their own to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

Level = Literal["ok", "note", "warning", "error"]
Facts = Mapping[str, Any]  # what `store.facts()` brings
Verdict = tuple[Level, str, str]  # how bad it is, how it is, what to do about it


class Finding(msgspec.Struct, frozen=True):
    """One thing the doctor looked at: how it is, and what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


def judged(facts: Facts, checks: Mapping[str, Callable[[Facts], Verdict]]) -> list[Finding]:
    """What each of these checks finds in the facts."""
    return [Finding(name, *check(facts)) for name, check in checks.items()]


def ok(message: str) -> Verdict:
    """All is well."""
    return "ok", message, ""


def note(message: str, advice: str) -> Verdict:
    """Good to know, and nothing has to be done."""
    return "note", message, advice


def warning(message: str, advice: str) -> Verdict:
    """Something should be done."""
    return "warning", message, advice


def error(message: str, advice: str) -> Verdict:
    """Something has to be done: it does not work like that."""
    return "error", message, advice


def counted(count: int) -> str:
    """So many jobs, in words."""
    return "1 job" if count == 1 else f"{count} jobs"
