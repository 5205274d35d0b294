"""One result of the doctor.

Only the record; the checks are in the modules beside it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "note", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """One thing the doctor looked at: how it is, and what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


def counted(count: int) -> str:
    """So many jobs, in words."""
    return "1 job" if count == 1 else f"{count} jobs"
