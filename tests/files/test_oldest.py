"""The last resort without a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError
from rowlock.files import delete_oldest, disk
from rowlock.files.disk import Space


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five files, 1.wav the oldest."""
    made = tmp_path / "recorder"
    made.mkdir()
    for number in range(1, 6):
        path = made / f"{number}.wav"
        path.write_bytes(b"x" * 4096)
        os.utime(path, (number, number))
    return made


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def pretend(monkeypatch: pytest.MonkeyPatch, free: Any) -> None:
    monkeypatch.setattr(disk, "space", lambda folder: Space(100_000, free() if callable(free) else free))


def test_the_oldest_go_until_enough_is_free(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda: 50_000 + 4_096 * (5 - len(left(place))))
    done = delete_oldest(place, "*.wav", until_free="58%")
    assert done.deleted == ["1.wav", "2.wav"] and done.enough and done.freed == 2 * 4_096
    assert left(place) == ["3.wav", "4.wav", "5.wav"]


def test_no_more_than_the_cap_go(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0)
    done = delete_oldest(place, "*.wav", until_free="90KB", cap=3)
    assert done.deleted == ["1.wav", "2.wav", "3.wav"] and not done.enough


def test_a_disk_that_tells_late_what_is_free_does_not_cost_more_files(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 50_000)
    assert delete_oldest(place, "*.wav", until_free=54_000).deleted == ["1.wav"]


def test_nothing_goes_while_enough_is_free(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 99_000)
    assert delete_oldest(place, "*.wav", until_free="50%").deleted == [] and len(left(place)) == 5


def test_a_deletion_that_was_broken_off_is_finished_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "1.wav").rename(place / ".1.wav.rowlock-delete")
    (place / ".other.txt.rowlock-delete").touch()
    pretend(monkeypatch, 0)
    assert delete_oldest(place, "*.wav", until_free="90KB", cap=2).deleted == ["1.wav", "2.wav"]
    assert left(place) == [".other.txt.rowlock-delete", "3.wav", "4.wav", "5.wav"]


def test_only_regular_files_that_fit_go(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0)
    outside = place.parent / "outside.wav"
    outside.write_bytes(b"precious")
    (place / "0.wav").symlink_to(outside)
    (place / "notes.txt").touch()
    assert delete_oldest(place, "*.wav", until_free="100%").deleted == [f"{n}.wav" for n in range(1, 6)]
    assert left(place) == ["0.wav", "notes.txt"] and outside.exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"until_free": "much"}, "until_free='much'"),
        ({"cap": 0}, "cap=0"),
        ({"folder": "nowhere"}, "does not exist"),
        ({"pattern": "../*"}, "pattern="),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, wrong: dict[str, Any], told: str) -> None:
    given = {"folder": place, "pattern": "*.wav", "until_free": "50%", **wrong}
    with pytest.raises(ConfigurationError, match=told):
        delete_oldest(**given)
