"""The birdsong example from end to end, with its kill and its outages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from examples.birdsong.sounds import BIRDS, scene

from tests.examples.running import run_example


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.chaos)])
def test_every_recording_is_analysed_once_by_both_and_only_what_a_tier_may_delete_is_gone(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    more = []
    connect: Any = lambda: sqlite3.connect(tmp_path / "birdsong.db")  # noqa: E731
    if database == "postgresql":
        url = request.getfixturevalue("own_postgres").url
        more, connect = ["--url", url], lambda: psycopg.connect(url)
    ran = run_example("birdsong", tmp_path, *more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "FileNotFoundError" not in "".join(log.read_text() for log in tmp_path.rglob("*.log"))
    with closing(connect()) as db:

        def rows(statement: str) -> list[Any]:
            return list(db.execute(statement).fetchall())

        recordings = rows("SELECT id, file_raw, file_processed, local_deleted FROM birdsong_recordings")
        deletions = rows("SELECT recording, tier, analysed, uploaded FROM birdsong_deletions")
        detections = rows("SELECT recording, found_by, species FROM birdsong_detections")
        clips = {clip for (clip,) in rows("SELECT clip FROM birdsong_detections WHERE clip IS NOT NULL")}

    # What an outage cost: only defensive and panic may delete what was not analysed.
    lost = {recording for recording, _, analysed, _ in deletions if not analysed}
    heard = [
        (recording, "birds" if call.species in BIRDS else "bats", call.species.name)
        for recording, raw, _, _ in recordings
        if recording not in lost
        for call in scene(int(Path(raw).stem.split("-")[-1]))
    ]
    assert sorted(detections) == sorted(heard)

    assert {tier for _, tier, _, _ in deletions} == {"housekeeping", "defensive", "panic"}
    assert all(analysed and uploaded for _, tier, analysed, uploaded in deletions if tier == "housekeeping")
    assert all(uploaded for _, tier, _, uploaded in deletions if tier == "defensive")
    gone = [recording for recording, _, _, _ in deletions]
    assert sorted(gone) == [recording for recording, _, _, deleted in sorted(recordings) if deleted]

    kept = {file for _, raw, processed, deleted in recordings if not deleted for file in (raw, processed)}
    folder = tmp_path / "recorder"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.wav")} == kept
    assert {path.name for path in (tmp_path / "clips").iterdir()} == clips
    assert len(recordings) == 21 and len(kept) == 6
    assert (tmp_path / "spectrogram.png").read_bytes().startswith(b"\x89PNG\r\n")
