"""Files: how long 10,000 existing ones take to get their rows, and how soon a new one has its own."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from rowlock import Rowlock

_SCANNED_WITHIN = 5.0  # seconds for 10,000 files
_PROMPT = 0.5  # seconds beyond the time for which a file has to stand still
_SETTLE = 0.5
_PATIENCE = 30.0


def run(setting: Setting) -> list[Line]:
    """Measure the scenario on SQLite."""
    database = setting.folder / "rowlock.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(TABLE.format(key="INTEGER PRIMARY KEY", table="recordings", time="REAL"))
    return measured("files", setting, f"sqlite:///{database}", "recordings", _sqlite_paths(database))


TABLE = "CREATE TABLE {table} (id {key}, time {time}, path TEXT UNIQUE, deleted BOOLEAN DEFAULT false)"


def measured(scenario: str, setting: Setting, url: str, table: str, paths: Any) -> list[Line]:
    """The figures for the database at this URL; `paths()` are the paths that its table has."""
    folder = setting.folder / "recorder"
    app = Rowlock(url)
    common: dict[str, Any] = {"table": table, "folder": folder, "path": "path", "paths": "relative"}
    ingest = app.ingest("all", settle=_SETTLE, interval=600.0, row=lambda path: {"time": 1e9}, **common)
    files = setting.choose(10_000, 1_000)
    _fill(folder, files)
    ingest.check()
    first = _seconds(ingest.run_once)
    again = _seconds(ingest.run_once)
    lines = [
        Line(
            scenario,
            f"{files:,} existing files, first scan with rows",
            f"{first:.2f} s",
            f"< {_SCANNED_WITHIN:g} s",
            first < _SCANNED_WITHIN,
            f"the next scan, which finds all of them known: {again:.2f} s",
            {"first": first, "again": again},
        )
    ]
    delays = _delays(ingest, folder, paths, setting.choose(20, 5))
    middle, most = percentile(delays, 50), max(delays)
    lines.append(
        Line(
            scenario,
            f"a new file, from its last write + {_SETTLE:g} s to its row",
            f"{middle * 1e3:.0f} ms median, {most * 1e3:.0f} ms at most",
            f"< {_PROMPT * 1e3:.0f} ms",
            most < _PROMPT,
            f"{len(delays)} files, one after another",
            {"median": middle, "most": most},
        )
    )
    janitor = app.janitor("all", order_by="time", max_age="1d", deleted="deleted", cap=files, **common)
    deleted = _seconds(janitor.run_once)
    lines.append(
        Line(
            scenario,
            f"{files:,} files deleted, with their rows marked",
            f"{deleted / files * 1e3:.2f} ms each",
            detail=f"{deleted:.1f} s in all: marked, looked at again, unlinked, confirmed",
            figures={"each": deleted / files},
        )
    )
    app.close()
    return lines


def _fill(folder: Path, files: int) -> None:
    before = time.time() - 3_600
    for number in range(files):
        path = folder / f"{number % 100:02}" / f"{number:05}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"RIFF")
        os.utime(path, (before, before))


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _delays(ingest: Any, folder: Path, paths: Any, count: int) -> list[float]:
    """For each of some new files, how long after it stood still for long enough its row was there."""
    service = threading.Thread(target=ingest.run)
    service.start()
    delays = []
    time.sleep(2.0)  # its first scan
    try:
        for number in range(count):
            name = f"new-{number}.wav"
            with (folder / name).open("wb") as file:
                for _ in range(3):
                    file.write(b"x" * 1_000)
                    file.flush()
                    written = time.time()
                    time.sleep(0.05)
            deadline = time.monotonic() + _PATIENCE
            while not paths(name):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} never got its row")
                time.sleep(0.005)
            delays.append(time.time() - written - _SETTLE)
    finally:
        ingest.stop()
        service.join()
    return delays


def _sqlite_paths(database: Path) -> Any:
    def there(name: str) -> bool:
        with closing(sqlite3.connect(database)) as connection:
            found = connection.execute("SELECT 1 FROM recordings WHERE path = ?", (name,)).fetchone()
        return found is not None

    return there
