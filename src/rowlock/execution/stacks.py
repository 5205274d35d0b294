"""Where a run stands: the frames of the task's own code."""

from __future__ import annotations

import traceback
from types import FrameType
from typing import Any

from rowlock.execution import execute

_OURS = execute.__file__


def stack_of(frame: FrameType) -> str:
    """The stack of a thread below the call of the task, the innermost call last."""
    return _shown(traceback.extract_stack(frame))


def awaits_of(coroutine: Any) -> str:
    """The same for a coroutine that waits: who awaits whom."""
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return _shown(traceback.StackSummary.extract(iter(frames)))


def _shown(found: traceback.StackSummary) -> str:
    ours = max((number for number, one in enumerate(found) if one.filename == _OURS), default=-1)
    return "".join(traceback.format_list(found[ours + 1 :] or found)).rstrip()
