"""A process that copies a queue and kills itself: `python -m tests.copying.killed FROM TO N PAGE`.

N is after how many batches; 0 is right after the source was closed."""

from __future__ import annotations

import os
import signal
import sys

from rowlock import Rowlock
from rowlock.copying import copier


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(source: str, target: str, after: int) -> None:
    batches = 0

    def tell(progress: object) -> None:
        nonlocal batches
        batches += 1
        if batches == after:
            die()

    copying = copier.Copier(Rowlock(source).store, Rowlock(target).store, tell=tell)
    if not after:
        copying._copy_rest = die  # type: ignore[method-assign]
    copying.run()


if __name__ == "__main__":
    copier.PAGE = int(sys.argv[4])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
