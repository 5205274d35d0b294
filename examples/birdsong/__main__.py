"""Starts the parts of the station as processes, lets things go wrong, and shows what became of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

STATION = "examples.birdsong.station"
ROOT = Path(__file__).resolve().parents[2]
RECORDING = 350_000  # bytes: a little more than one recording has, raw and processed
STARTED = time.monotonic()
PATIENCE_SECONDS = 120.0
ANALYSED = " AND ".join(
    f"""replace(CAST(analysis_state AS text), ' ', '') LIKE '%"{name}":true%'""" for name in ("birds", "bats")
)
DONE = f"{ANALYSED} AND uploaded"


class Parts:
    """The processes of the station; their logs are in `logs/`."""

    def __init__(self) -> None:
        self._living: list[subprocess.Popen[bytes]] = []
        Path("logs").mkdir()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        where = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with Path("logs", f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, "PYTHONPATH": where},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._living.append(process)
        return process

    def rowlock(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        return self.start(name, "rowlock", *command)

    def end(self) -> None:
        for process in self._living:
            process.terminate()
        for process in self._living:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


class Station:
    """The table as the demonstration looks at it."""

    def __init__(self, end: ExitStack) -> None:
        from examples.birdsong import station

        self.app, self._sql = station.app, station.sql
        if station.IS_SQLITE:
            import sqlite3

            path = station.URL.removeprefix("sqlite:///")
            self._connection: Any = sqlite3.connect(path, isolation_level=None, timeout=30)
        else:
            import psycopg

            self._connection = psycopg.connect(station.URL, autocommit=True)
        end.callback(self._connection.close)
        end.callback(self.app.close)
        for statement in station.tables():
            self._connection.execute(statement)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return list(self._connection.execute(self._sql(statement), values).fetchall())

    def set_limit(self, tier: str, recordings: int | None) -> None:
        self._connection.execute(self._sql("DELETE FROM birdsong_settings WHERE name = ?"), (tier,))
        if recordings is not None:
            values = (tier, f"{recordings * RECORDING}B")
            self._connection.execute(self._sql("INSERT INTO birdsong_settings VALUES (?, ?)"), values)

    def holds_a_row(self, consumer: str) -> bool:
        """Whether it is at work at this moment; `insights.consumers` says so, too, but counts much more."""
        held = "SELECT 1 FROM rowlock_consumer_claims WHERE consumer = ? AND claimed_by IS NOT NULL"
        return bool(self.rows(held, consumer))

    def count(self, condition: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM birdsong_recordings WHERE {condition}")[0][0])


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_SECONDS:g} s: {what}; see the logs")
        time.sleep(0.02)


def demonstrate(parts: Parts, station: Station) -> None:
    """Two days in some seconds: work, a kill -9, two outages, and work again."""
    app = f"{STATION}:app"
    for folder in ("recorder", "clips"):
        Path(folder).mkdir()
    inits = [
        parts.rowlock("init", "ingest", app, "--init"),
        parts.rowlock("init", "consumers", "init", "--app", app),
    ]
    if any(one.wait() != 0 for one in inits):
        raise SystemExit("the indexes could not be made, see logs/init.log")
    recorded = 0

    def record(count: int) -> None:
        nonlocal recorded
        parts.start(
            "recorder",
            "examples.birdsong.recorder",
            "recorder",
            f"--first={recorded + 1}",
            f"--count={count}",
            "--every=0.1",
        )
        recorded += count

    def left(count: int) -> None:
        """Wait until everything has its row, and only so many are not deleted."""
        wait_until(lambda: station.count("1 = 1") == recorded, f"{recorded} rows")
        wait_until(lambda: station.count("NOT local_deleted") == count, f"{count} recordings left")

    def everything_kept_is_done() -> None:
        wait_until(
            lambda: station.count(f"NOT local_deleted AND NOT coalesce({DONE}, false)") == 0, "all done"
        )

    say("all parts start; housekeeping keeps 3 recordings that are analysed and uploaded")
    station.set_limit("housekeeping", 3)
    parts.rowlock("ingest", "ingest", app)
    parts.rowlock("janitor", "janitor", app)
    for consumer in ("birds", "uploader"):
        parts.rowlock(consumer, "consume", app, consumer)
    victim = parts.rowlock("bats", "consume", app, "bats")
    record(8)
    wait_until(lambda: station.holds_a_row("bats"), "bats at work")
    victim.kill()
    say("bats was killed with -9 while it worked on a recording, and is started again")
    parts.rowlock("bats", "consume", app, "bats")
    left(3)
    everything_kept_is_done()

    say("the analysers pause, 6 recordings come: defensive keeps 4, and deletes what is uploaded")
    for consumer in ("birds", "bats"):
        station.app.pause(f"consumer:{consumer}")
    station.set_limit("defensive", 4)
    record(6)
    left(4)

    say("the uploader pauses as well, 7 more come: panic keeps 5, whatever they are")
    station.app.pause("consumer:uploader")
    station.set_limit("panic", 5)
    record(7)
    left(5)

    say("all work again")
    for tier in ("defensive", "panic"):
        station.set_limit(tier, None)
    for consumer in ("birds", "bats", "uploader"):
        station.app.resume(f"consumer:{consumer}")
    left(3)
    everything_kept_is_done()


def say(what: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {what}", flush=True)


def report(station: Station) -> None:
    """Print what was found by whom, deleted by which tier, and kept."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    found = Table("found by", "species", "calls", "recordings", title="\nDetections", title_justify="left")
    for row in station.rows(
        "SELECT found_by, species, count(*), count(DISTINCT recording) FROM birdsong_detections "
        "GROUP BY found_by, species ORDER BY found_by, species"
    ):
        found.add_row(*map(str, row))
    fate = Table(
        "recordings", "number", "of these analysed", "uploaded", title="\nRecordings", title_justify="left"
    )
    for tier in ("housekeeping", "defensive", "panic"):
        rows = station.rows("SELECT analysed, uploaded FROM birdsong_deletions WHERE tier = ?", tier)
        analysed, uploaded = sum(bool(one) for one, _ in rows), sum(bool(one) for _, one in rows)
        fate.add_row(f"deleted by {tier}", str(len(rows)), str(analysed), str(uploaded))
    kept = station.count("NOT local_deleted")
    whole = station.count(f"NOT local_deleted AND {ANALYSED}")
    fate.add_row("kept", str(kept), str(whole), str(station.count("NOT local_deleted AND uploaded")))
    console.print(found, fate)


def picture(station: Station, path: Path) -> None:
    """Draw the newest recording, raw and processed, with what was found in each."""
    from examples.birdsong.picture import Box, draw
    from examples.birdsong.sounds import read_wav

    recording, raw, processed = station.rows(
        "SELECT id, file_raw, file_processed FROM birdsong_recordings WHERE NOT local_deleted "
        "ORDER BY id DESC LIMIT 1"
    )[0]
    panels = []
    for title, file, by in (("raw", raw, "bats"), ("processed", processed, "birds")):
        boxes = station.rows(
            "SELECT species, start_s, end_s, low_hz, high_hz FROM birdsong_detections "
            "WHERE recording = ? AND found_by = ?",
            recording,
            by,
        )
        samples, rate = read_wav(Path("recorder", file))
        panels.append((f"recording {recording} {title}", samples, rate, [Box(*box) for box in boxes]))
    draw(path, panels)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="a folder that is empty, or not there yet")
    options.add_argument("--url", help="a database of PostgreSQL; else a file of SQLite's in the folder")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if any(given.folder.iterdir()):
        options.error(f"{given.folder} is not empty")
    if given.url:
        os.environ["ROWLOCK_DATABASE_URL"] = given.url
    os.chdir(given.folder)
    with ExitStack() as end:
        parts = Parts()
        station = Station(end)
        end.callback(parts.end)
        demonstrate(parts, station)
        report(station)
        picture(station, Path("spectrogram.png"))
    print(f"\nThe newest recording with its detections: {given.folder / 'spectrogram.png'}")


if __name__ == "__main__":
    main()
