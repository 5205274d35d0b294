"""Running an example as its reader does: as a program, which starts programs of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, *words: str | Path, within: float = 220) -> subprocess.CompletedProcess[str]:
    """Run it to its end; if it takes too long, what it has started ends with it."""
    command = [sys.executable, "-m", f"examples.{name}", *map(str, words)]
    pipe = subprocess.PIPE
    # With a thread per core NumPy's processes keep each other, and the other tests, waiting: twice as long.
    settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=settings, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as example:
        try:
            out, err = example.communicate(timeout=within)
        except BaseException:
            if sys.platform == "win32":
                example.kill()
            else:
                os.killpg(example.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, example.returncode, out, err)
