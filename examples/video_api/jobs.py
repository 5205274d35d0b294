"""The app and its task. `VIDEO_MODE=file` is for two processes that take turns; else one owns the file.

A child process of the pool imports this module, too: nothing is opened here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import sqlalchemy
from examples.video_api.video import CUT, frames_of, png

import rowlock.duckdb
from rowlock import Fail, JobContext, Retry, Rowlock

FILE = "data.duckdb"
TURNS = os.environ.get("VIDEO_MODE") == "file"
SECONDS_PER_FRAME = float(os.environ.get("VIDEO_SECONDS_PER_FRAME", "0"))  # so that people can watch it
HOLD = Path("hold")  # while it exists, a run stops in mid-video: what the demonstration kills is at work

engine = rowlock.duckdb.create_engine(FILE) if TURNS else sqlalchemy.create_engine(f"duckdb:///{FILE}")
app = Rowlock(f"duckdb:///{FILE}") if TURNS else Rowlock(engine=engine)


@app.task(pool="process", retry=Retry(max_attempts=5, base=0.2))
def process(ctx: JobContext, video: str, path: str, thumbnail: str) -> dict[str, float]:
    """Count frames and scene cuts, measure the brightness, and draw the middle frame as a thumbnail."""
    brightness, cuts, count = [], 0, 0
    last = middle = None
    try:
        for number, count, picture in frames_of(Path(path)):
            brightness.append(float(picture.mean()))
            if last is not None and np.abs(picture.astype(int) - last).mean() > CUT:
                cuts += 1
            if number == count // 2:
                middle = picture
            last = picture
            ctx.progress(number + 1, count, f"frame {number + 1} in process {os.getpid()}")
            ctx.check_cancelled()
            time.sleep(SECONDS_PER_FRAME)
            while number == count // 2 and HOLD.exists():
                time.sleep(0.01)
    except ValueError as error:
        raise Fail(str(error)) from error  # it will be no better the next time
    if middle is None:
        raise Fail("it has no frames")
    Path(thumbnail).write_bytes(png(middle[::2, ::2]))
    return {"frames": count, "brightness": round(float(np.mean(brightness)), 1), "cuts": cuts}
