"""Where a run stands: the frames of the task's own code."""

from __future__ import annotations

import traceback
from types import FrameType

from rowlock.running import execute

_OURS = execute.__file__


def stack_of(frame: FrameType) -> str:
    """The stack below the call of the task, the innermost call last."""
    found = traceback.extract_stack(frame)
    ours = max((number for number, one in enumerate(found) if one.filename == _OURS), default=-1)
    return "".join(traceback.format_list(found[ours + 1 :] or found)).rstrip()
