"""The station: its tables, what becomes a row, who works on the rows, and what is deleted when.

All parts are started from here by the `rowlock` command line; `__main__.py` shows how.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from examples.birdsong.analysis import FilterBank, Found, find_birds
from examples.birdsong.sounds import BATS, BIRDS, RAW_RATE, Samples, read_wav, write_wav

from rowlock import Flag, JobContext, Rowlock, resident
from rowlock.consumers.row import Row

URL = os.environ.get("ROWLOCK_DATABASE_URL", "sqlite:///birdsong.db")
RECORDER, CLIPS, UPLOADS = Path("recorder"), Path("clips"), Path("uploads")  # in the working directory
ANALYSERS = ("birds", "bats")
TIERS = ("housekeeping", "defensive", "panic")
IS_SQLITE = URL.startswith("sqlite:")
KEY = "INTEGER PRIMARY KEY AUTOINCREMENT" if IS_SQLITE else "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"

# A lease of 2 s: after a kill -9 the demonstration shall not wait for a minute.
app = Rowlock(URL, lease=2.0, poll_interval=0.2)


def sql(statement: str) -> str:
    """The statement with the placeholders of the driver."""
    return statement if IS_SQLITE else statement.replace("%", "%%").replace("?", "%s")


def tables() -> list[str]:
    """The station's own tables; rowlock adds indexes to the first, and nothing else."""
    made = {
        "birdsong_recordings": f"id {KEY}, time DOUBLE PRECISION, file_raw TEXT, file_processed TEXT, "
        f"analysis_state {'TEXT' if IS_SQLITE else 'JSONB'}, "
        "uploaded BOOLEAN DEFAULT false, local_deleted BOOLEAN DEFAULT false",
        "birdsong_detections": f"id {KEY}, recording BIGINT, found_by TEXT, species TEXT, "
        "start_s REAL, end_s REAL, low_hz REAL, high_hz REAL, clip TEXT",
        "birdsong_deletions": "recording BIGINT, tier TEXT, analysed BOOLEAN, uploaded BOOLEAN",
        "birdsong_settings": "name TEXT PRIMARY KEY, value TEXT",
    }
    drop = [f"DROP TABLE IF EXISTS {name}" for name in made]
    return [*drop, *(f"CREATE TABLE {name} ({columns})" for name, columns in made.items())]


# -- ingest: one row for each pair of files ------------------------------------------------------


def describe(raw: Path) -> dict[str, object] | None:
    """The row of a recording; not yet, while its processed file is missing."""
    processed = raw.parent.parent / "processed" / raw.name
    if not processed.exists():
        return None
    return {"time": raw.stat().st_mtime, "file_processed": processed}


files: dict[str, Any] = {
    "table": "birdsong_recordings",
    "folder": RECORDER,
    "path": ["file_raw", "file_processed"],
    "paths": "relative",
}
app.ingest("microphones", pattern="raw/*.wav", row=describe, settle=0.3, interval=1.0, **files)


# -- the analysers -------------------------------------------------------------------------------

# A tier may delete what nobody has analysed or uploaded yet: such a row is nobody's work any more.
recordings: dict[str, Any] = {
    "table": "birdsong_recordings",
    "order_by": "time",
    "where": "NOT local_deleted",
}


@app.consumer("birds", state="analysis_state", **recordings)
def birds(ctx: JobContext, recording: Row) -> None:
    samples, rate = read_wav(RECORDER / recording.file_processed)
    keep(ctx, recording.id, "birds", find_birds(samples, rate, BIRDS), samples, rate)


@app.consumer("bats", state="analysis_state", **recordings)
def bats(ctx: JobContext, recording: Row, bank: FilterBank = resident(FilterBank)) -> None:
    samples, _ = read_wav(RECORDER / recording.file_raw)
    keep(ctx, recording.id, "bats", bank.find(samples, BATS), samples, RAW_RATE)


def keep(ctx: JobContext, recording: int, by: str, calls: list[Found], samples: Samples, rate: int) -> None:
    """Write a clip and a row for each call; the rows commit together with the recording's new state."""
    CLIPS.mkdir(exist_ok=True)
    with ctx.transaction() as tx:
        for number, call in enumerate(calls, start=1):
            clip = f"{recording}-{by}-{number}.wav"  # the same in a second attempt, which overwrites it
            first, last = int((call.start - 0.02) * rate), int((call.end + 0.02) * rate)
            write_wav(CLIPS / clip, samples[max(0, first) : last], rate)
            tx.execute(
                sql(
                    "INSERT INTO birdsong_detections "
                    "(recording, found_by, species, start_s, end_s, low_hz, high_hz, clip) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                ),
                (recording, by, *call, clip),
            )


# -- the uploader --------------------------------------------------------------------------------


@app.consumer("uploader", flag=Flag("uploaded"), **recordings)
def uploader(recording: Row) -> None:
    UPLOADS.mkdir(exist_ok=True)
    for kind, file in (("raw", recording.file_raw), ("processed", recording.file_processed)):
        shutil.copy2(RECORDER / file, UPLOADS / f"{kind}-{Path(file).name}")


# -- the janitor's three tiers -------------------------------------------------------------------


def limit(tier: str) -> Callable[[Any], str | None]:
    """What the settings table says at this moment; no limit if it says nothing."""

    def read(tx: Any) -> str | None:
        found = tx.execute(sql("SELECT value FROM birdsong_settings WHERE name = ?"), (tier,)).fetchone()
        return None if found is None else str(found[0])

    return read


def clips(row: Any, tx: Any) -> Iterable[str]:
    found = tx.execute(sql("SELECT clip FROM birdsong_detections WHERE recording = ?"), (row["id"],))
    return [clip for (clip,) in found.fetchall() if clip is not None]


def deleted(tier: str, row: Any, paths: list[Path], tx: Any) -> None:
    """Keep a record of who deleted what, in the transaction that marks the row."""
    state = row["analysis_state"] or {}
    state = json.loads(state) if isinstance(state, str) else state
    analysed = all(state.get(name) is True for name in ANALYSERS)
    values = (row["id"], tier, analysed, bool(row["uploaded"]))
    tx.execute(sql("INSERT INTO birdsong_deletions VALUES (?, ?, ?, ?)"), values)
    for path in paths:
        tx.execute(sql("UPDATE birdsong_detections SET clip = NULL WHERE clip = ?"), (path.name,))


common: dict[str, Any] = {
    **files,
    "order_by": "time",
    "deleted": "local_deleted",
    "also": clips,
    "also_folder": CLIPS,
    "interval": 0.3,
}
# A real station would say min_free="30%", "20%" and "10%"; a demonstration must not fill your disk.
for name, conditions in {
    "housekeeping": {"after": ANALYSERS, "where": "uploaded"},
    "defensive": {"after": (), "where": "uploaded"},
    "panic": {"after": (), "cap": 50},
}.items():
    app.janitor(name, max_size=limit(name), on_deleted=partial(deleted, name), **conditions, **common)
