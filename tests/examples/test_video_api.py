"""The video service from end to end, with kills of the child process and of the worker."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest
from examples.video_api.video import generate

from tests.examples.running import run_example


@pytest.mark.skipif(sys.platform == "win32", reason="uses SIGKILL")
@pytest.mark.parametrize("mode", [(), ("--two-processes",)], ids=["owner", "two-processes"])
def test_videos_survive_a_killed_child_and_a_killed_worker(mode: tuple[str, ...], tmp_path: Path) -> None:
    ran = run_example("video_api", tmp_path, "--frames", "60", *mode)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert ran.returncode == 0, ran.stdout + ran.stderr + logs
    assert "killed its process" in ran.stdout and "with -9, while jobs ran and waited" in ran.stdout
    with duckdb.connect(str(tmp_path / "data.duckdb")) as db:
        states = db.execute("SELECT state, count(*) FROM rowlock_jobs GROUP BY state").fetchall()
        videos = db.execute("SELECT name, frames, cuts, error IS NULL FROM videos ORDER BY job").fetchall()
        claims = db.execute("SELECT claim FROM rowlock_jobs ORDER BY id").fetchall()
    assert dict(states) == {"completed": 4, "failed": 1}  # none is left running, none is lost
    assert videos == [
        ("warm-up.grey", 5, 0, True),
        ("scenes-2.grey", 60, 1, True),
        ("scenes-3.grey", 60, 2, True),
        ("scenes-4.grey", 60, 3, True),
        ("letter.txt", None, None, False),
    ]
    assert sum(claim for (claim,) in claims) >= 5 + 2  # one lost its process, one its worker
    thumbnails = list((tmp_path / "uploads").glob("*.png"))
    assert len(thumbnails) == 4 and all(path.read_bytes().startswith(b"\x89PNG") for path in thumbnails)


def test_a_video_is_what_its_header_says() -> None:
    assert len(generate(3, 1, size=(8, 4))) == 16 + 3 * 8 * 4
