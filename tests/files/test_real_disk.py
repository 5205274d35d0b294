"""A janitor on a small disk that is really full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rowlock.files import delete_oldest
from tests.files.station import LONG_AGO, Station

MEGABYTE = 1_048_576


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB in memory."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount, on Linux")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(folder: Path) -> int:
    """Write files of 256 KB until there is no room for another; says how many there are."""
    for number in range(100):
        path = folder / f"{number:05}.wav"
        try:
            path.write_bytes(b"x" * (MEGABYTE // 4))
        except OSError:
            path.unlink()
            return number
        os.utime(path, (LONG_AGO + number,) * 2)
    raise AssertionError("the disk never filled up")


def test_a_full_disk_gets_room_from_the_oldest(small_disk: Path, tmp_path: Path) -> None:
    station = Station(f"sqlite:///{tmp_path / 'queue.db'}", tmp_path / "unused")
    station.create()
    app = station.app()
    folder = small_disk / "recorder"
    folder.mkdir()
    made = fill(folder)
    common = {"table": "recordings", "folder": folder, "path": "file_raw", "paths": "relative"}
    row = {"uploaded": True}
    app.ingest("all", row=lambda path: {**row, "time": path.stat().st_mtime}, **common).run_once()
    report = app.janitor(
        "space", order_by="time", min_free="20%", target_free="50%", deleted="local_deleted", **common
    ).run_once()
    assert [row.paths[0] for row in report.deleted] == [f"{number:05}.wav" for number in range(made // 2)]
    assert 2 * MEGABYTE <= (os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize) < 2.5 * MEGABYTE
    station.close()


def test_a_full_disk_gets_room_without_a_database(small_disk: Path) -> None:
    folder = small_disk / "recorder"
    folder.mkdir()
    fill(folder)
    done = delete_oldest(folder, "*.wav", until_free="1MB")
    assert done.enough and len(done.deleted) == 4 and not (folder / "00000.wav").exists()
