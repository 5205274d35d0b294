"""A janitor in a process of its own that is killed between two steps."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rowlock import Rowlock
from rowlock.files import deleting
from rowlock.files.directories import Directory
from rowlock.files.janitor import Janitor

STEPS = ("marked", "aside", "unlinked one", "unlinked", "companions", "before commit", "confirmed")


def declared(app: Rowlock, table: str, folder: Path, told: str) -> Janitor:
    """The janitor that is killed, and the one that comes after it."""
    folder = Path(folder)

    def on_deleted(row: Any, paths: list[Path], tx: Any) -> None:
        names = " ".join(sorted(path.name for path in paths))
        tx.execute(f"INSERT INTO {told} (row_id, names) VALUES ({row.id}, '{names}')")

    return app.janitor(
        "housekeeping",
        table=table,
        folder=folder,
        path=["file_raw", "file_processed"],
        paths="relative",
        order_by="time",
        deleted="local_deleted",
        max_age="1h",
        where="uploaded",
        also=lambda row: [f"{row.id}.clip"],
        also_folder=folder.parent / "clips",
        on_deleted=on_deleted,
    )


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, table: str, folder: str, told: str, step: str) -> None:
    if step == "aside":  # it has changed its name, and is not unlinked yet
        Directory.unlink = _die  # type: ignore[method-assign,assignment]
    else:
        deleting.step = lambda name: _die() if name == step else None
    declared(Rowlock(url), table, Path(folder), told).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
