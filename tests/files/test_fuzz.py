"""Ingest and janitor over trees and tables that nobody thought of, while others rename and re-create.

Deletions outside the folder, needed files deleted, partial ingests and double rows: none of each.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rowlock import Rowlock
from tests.files.station import LONG_AGO, Station
from tests.files.test_folder import build, outside_of, state_of
from tests.memory import MEMORY

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX file systems only")

_NAMES = st.sampled_from(["a", "b", "c.wav", ".hidden", "with space", "new\nline", "ü", "%s", "«x»"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_KINDS = [
    "file",
    "file",
    "file",
    "folder",
    "link to file",
    "link to folder",
    "link inside",
    "hard link",
    "fifo",
]
_STEPS = st.lists(st.tuples(st.sampled_from(_KINDS), _PATHS), max_size=12)
_EVIL = st.sampled_from(
    ["../outside/secret", "a/../../outside/a/b", "/etc/passwd", "", ".", "..", "a//b", "a\x01"]
)
_ROWS = st.lists(
    st.tuples(st.one_of(_PATHS, _EVIL), st.one_of(st.none(), _PATHS, _EVIL), st.booleans()), max_size=8
)


class Lab:
    """One station for many examples: its folder and its table are emptied in between.

    Its services stay, too, unless an example asks for a restart: to write the SQL of a new ingest and a new
    janitor took 20 of the 35 ms of an example.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.station = Station(f"sqlite:///{base / 'queue.db'}", base / "inside")
        self.station.create()
        self.app: Rowlock = self.station.app()
        self.common: dict[str, Any] = {
            "table": "recordings",
            "folder": self.station.folder,
            "path": ["file_raw", "file_processed"],
            "paths": "relative",
        }
        self.start()
        self.ingest.check()

    def start(self) -> None:
        """New services, as after a restart: a janitor's first run looks for rows whose files are gone."""
        row = {"time": LONG_AGO, "uploaded": True}
        limits = {"order_by": "time", "max_age": "1d", "where": "uploaded", "deleted": "local_deleted"}
        self.ingest: Any = self.app.ingest("all", settle=0.0, row=lambda path: row, **self.common)
        self.janitor: Any = self.app.janitor("all", **limits, **self.common)

    def empty(self, restart: bool) -> None:
        for folder in ("inside", "outside"):
            shutil.rmtree(self.base / folder, ignore_errors=True)
        self.station.folder.mkdir()
        for table in ("recordings", "rowlock_files", "rowlock_file_marks"):
            self.station.execute(f"DELETE FROM {table}")
        if restart:
            self.start()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with TemporaryDirectory(dir=MEMORY) as base:
        made = Lab(Path(base))
        yield made
        made.station.close()


_quick = settings(
    max_examples=75,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_RESTART = st.sampled_from([False, False, False, True])
_long = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.no_cover
@_quick
@given(steps=_STEPS, rows=_ROWS, restart=_RESTART)
@example(
    steps=[("file", "a"), ("hard link", "b")], rows=[("a", "b", True), ("c.wav", "a", False)], restart=True
)
@example(steps=[("link to folder", "a"), ("file", "b")], rows=[("b", "a/secret", True)], restart=True)
def test_whatever_the_tree_and_the_table_only_what_is_allowed_goes(
    lab: Lab, steps: list[tuple[str, str]], rows: list[tuple[str, str | None, bool]], restart: bool
) -> None:
    check_policy(lab, steps, rows, restart)


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
@_long
@given(steps=_STEPS, rows=_ROWS, restart=_RESTART)
def test_ten_thousand_tables(
    lab: Lab, steps: list[tuple[str, str]], rows: list[tuple[str, str | None, bool]], restart: bool
) -> None:
    check_policy(lab, steps, rows, restart)


def check_policy(
    lab: Lab, steps: list[tuple[str, str]], rows: list[tuple[str, str | None, bool]], restart: bool
) -> None:
    lab.empty(restart)
    station, outside = lab.station, outside_of(lab.base)
    build(station.folder, outside, steps)
    for raw, processed, uploaded in rows:
        station.execute(
            "INSERT INTO recordings (time, file_raw, file_processed, uploaded) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (LONG_AGO, raw, processed, uploaded),
        )
    before, there = state_of(outside), regular(station.folder)
    protected = {
        path
        for raw, processed, uploaded in station.rows("file_raw", "file_processed", "uploaded")
        for path in (raw, processed)
        if not uploaded
    }
    named = {path for row in station.rows("file_raw", "file_processed") for path in row}
    lab.janitor.run_once()
    left = regular(station.folder)
    assert state_of(outside) == before
    assert there & protected <= left and there - named <= left
    for raw, processed, deleted in station.rows("file_raw", "file_processed", "local_deleted"):
        assert not deleted or not {raw, processed} & left
    assert station.marks() == []
    lab.ingest.run_once()
    raws = station.column("file_raw")
    assert len(raws) == len(set(raws))
    known = {path for row in station.rows("file_raw", "file_processed") for path in row}
    assert {path for path in left if (station.folder / path).stat().st_size} <= known


def regular(folder: Path) -> set[str]:
    """The regular files that can be reached without a link."""
    found = set()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(place, name))]
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                found.add(path.relative_to(folder).as_posix())
    return found


# -- while somebody else is at work ----------------------------------------------------------------

NEW = b"made by somebody else since"
_ACTS = st.lists(
    st.tuples(st.sampled_from(["replace", "move folder", "vanish", "grow", "link"]), st.integers(0, 5)),
    min_size=1,
    max_size=25,
)


@pytest.mark.no_cover
@_quick
@given(acts=_ACTS, restart=_RESTART)
def test_what_changes_under_its_hands_is_never_deleted(
    lab: Lab, acts: list[tuple[str, int]], restart: bool
) -> None:
    check_race(lab, acts, restart)


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
@_long
@given(acts=_ACTS, restart=_RESTART)
def test_ten_thousand_races(lab: Lab, acts: list[tuple[str, int]], restart: bool) -> None:
    check_race(lab, acts, restart)


def check_race(lab: Lab, acts: list[tuple[str, int]], restart: bool) -> None:
    lab.empty(restart)
    station, outside = lab.station, outside_of(lab.base)
    for number in range(6):
        station.write(f"d{number % 2}/{number}.wav", b"old")
    lab.ingest.run_once()
    before = state_of(outside)
    kept: dict[str, bytes] = {}
    thread = threading.Thread(target=lambda: stir(station.folder, lab.base, acts, kept))
    thread.start()
    lab.janitor.run_once()
    thread.join()
    assert state_of(outside) == before
    there = {
        path.name.removeprefix(".").removesuffix(".rowlock-delete"): path
        for path in station.folder.rglob("*")
    }
    for name, content in kept.items():  # what somebody wrote last is there, wherever its folder is by now
        assert name in there and there[name].read_bytes() == content
    lab.janitor.run_once()
    lab.ingest.run_once()
    raws = station.column("file_raw")
    assert len(raws) == len(set(raws)) and station.marks() == []


def stir(folder: Path, base: Path, acts: list[tuple[str, int]], kept: dict[str, bytes]) -> None:
    """Do as the acts say; `kept` are the files that nobody may delete afterwards."""
    for act, number in acts:
        place = folder / f"d{number % 2}"
        target = place / f"{number}.wav"
        try:
            _ACT[act](place, target, base)
        except OSError:
            continue
        if act == "replace":
            kept[target.name] = NEW
        elif act == "vanish":
            kept.pop(target.name, None)


def _replace(place: Path, target: Path, base: Path) -> None:
    draft = base / "draft"
    draft.write_bytes(NEW)
    os.replace(draft, target)


def _move(place: Path, target: Path, base: Path) -> None:
    place.rename(place.with_name("moved"))
    place.with_name("moved").rename(place)


def _link(place: Path, target: Path, base: Path) -> None:
    (place / "link").symlink_to(base / "outside")
    (place / "link").unlink()


def _grow(place: Path, target: Path, base: Path) -> None:
    target.stat()  # it must be there
    if target.read_bytes() == NEW:  # what must be kept is compared at the end
        return
    with target.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"more")


_ACT: dict[str, Callable[[Path, Path, Path], None]] = {
    "replace": _replace,
    "move folder": _move,
    "vanish": lambda place, target, base: target.unlink(),
    "grow": _grow,
    "link": _link,
}
