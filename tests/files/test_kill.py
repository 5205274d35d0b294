"""kill -9 of the janitor between each pair of steps: nothing is lost, and nothing stays marked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.files.killed import STEPS, declared
from tests.files.station import Station

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no kill -9 on Windows")


@pytest.mark.parametrize("step", STEPS)
def test_a_janitor_that_is_killed_is_continued_by_the_next(station: Station, step: str) -> None:
    if not station.is_sqlite and step in ("unlinked one", "companions"):
        pytest.skip("the same transaction as for the steps beside it")
    station.create()
    told = f"{station.prefix}told"
    station.execute(f"CREATE TABLE {told} (row_id BIGINT, names TEXT)")
    clips = station.folder.parent / "clips"
    clips.mkdir()
    for number in range(1, 4):
        station.add(number, processed=True, uploaded=number < 3)
    for key in station.column("id"):
        (clips / f"{key}.clip").write_bytes(b"clip")
    before = station.files()
    command = [
        sys.executable,
        "-m",
        "tests.files.killed",
        station.url,
        station.table,
        str(station.folder),
        told,
        step,
    ]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    # What the table says to be gone is gone, whatever happened; what is there may be there under two names.
    for raw in station.deleted():
        assert raw not in station.files()
    assert {"00003.wav", "p/00003.wav"} <= set(station.files())

    declared(station.app(), station.table, station.folder, told).run_once()
    assert station.deleted() == ["00001.wav", "00002.wav"] and station.marks() == []
    assert station.files() == [path for path in before if "00003" in path]
    first, second, third = station.column("id")
    assert [path.name for path in clips.iterdir()] == [f"{third}.clip"]
    rows = station.execute(f"SELECT row_id, names FROM {told} ORDER BY row_id")
    assert rows == [
        (first, f"00001.wav 00001.wav {first}.clip"),
        (second, f"00002.wav 00002.wav {second}.clip"),
    ]
