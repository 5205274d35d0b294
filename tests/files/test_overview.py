"""What the doctor says about files, and the numbers for front ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.files import disk, overview
from rowlock.files.disk import Space
from rowlock.insights import Finding
from tests.files.station import Station

BOTH = ["file_raw", "file_processed"]


@pytest.fixture
def here(sqlite_station: Station) -> Station:
    sqlite_station.create()
    return sqlite_station


def common(station: Station, **chosen: Any) -> dict[str, Any]:
    return {"table": station.table, "folder": station.folder, "path": BOTH, "paths": "relative", **chosen}


def said(app: Rowlock, check: str) -> list[Finding]:
    return [one for one in overview.findings(app) if one.check == check]


def test_a_healthy_station_is_called_healthy(here: Station) -> None:
    app = here.app()
    here.write("a.wav")
    app.ingest("microphones", **common(here, row=lambda path: {"time": 1.0})).run_once()
    app.janitor("old", **common(here, order_by="time", max_age="1d", deleted="local_deleted")).run_once()
    assert {one.level for one in overview.findings(app)} == {"ok"}
    ingest, janitor = app.ingests["microphones"].record(), app.janitors["old"].record()
    assert (ingest.kind, ingest.done, janitor.kind, janitor.done) == ("ingest", 1, "janitor", 1)
    assert janitor.free is not None and janitor.bytes > 0


def test_a_missing_folder_constraint_or_column_is_an_error(here: Station, tmp_path: Path) -> None:
    app = here.app()
    app.ingest("nowhere", **common(here, folder=tmp_path / "nowhere"))
    app.ingest("twice", **common(here, path=["station"]))
    app.janitor("wrong", **common(here, min_free="1%", deleted="no_column"))
    levels = {one.check: (one.level, one.message) for one in overview.findings(app) if one.check != "paths"}
    assert "does not exist" in levels["ingest nowhere"][1]
    assert "no unique constraint" in levels["ingest twice"][1]
    assert "no_column" in levels["janitor wrong"][1]
    assert {level for level, _ in levels.values()} == {"error"}


def test_files_without_a_row_and_refused_ones_are_warnings(here: Station) -> None:
    app = here.app()
    here.write("a.wav")
    made = app.ingest("microphones", **common(here, row=lambda path: 1 / 0))
    made.run_once()
    Path(os.fsdecode(os.fsencode(here.folder) + b"/\xff.wav")).write_bytes(b"RIFF")
    made.run_once()  # the other one waits for its next attempt
    here.add(1, file_processed="../outside")
    app.janitor("old", **common(here, order_by="time", max_age="1d", deleted="local_deleted")).run_once()
    assert "1 files have no row" in said(app, "ingest microphones")[1].message
    assert "1 files or folders cannot be read" in said(app, "ingest microphones")[2].message
    assert "1 files were refused" in said(app, "janitor old")[1].message


def test_too_little_space_and_a_limit_that_raises_are_said(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "space", lambda folder: Space(1_000, 100))
    app = here.app()
    app.janitor("space", **common(here, min_free="20%"))
    app.janitor("broken", **common(here, min_free=lambda: 1 / 0))
    assert "100 bytes are free, and 200 are wanted" in said(app, "janitor space")[1].message
    assert said(app, "janitor broken")[0].level == "error"
    assert said(app, "janitor space")[2].message == "it has never run"


def test_tiers_that_contradict_each_other_are_said(here: Station) -> None:
    app = here.app()
    app.consumer("birdnet", table=here.table, state="analysis_state")(lambda row: None)
    app.janitor("panic", **common(here, min_free="30%"))
    app.janitor("gentle", **common(here, min_free="20%", after=["birdnet"], where="uploaded"))
    app.janitor("other", **common(here, min_free="10%", where="uploaded", remove_rows=True))
    told = [one.message for one in said(app, "tiers")]
    assert "panic and other disagree on remove_rows of the same files" in told
    assert "panic begins before gentle and protects no more, so that gentle never acts" in told
    assert not [one for one in told if one.startswith("gentle begins before other")]


def test_tiers_as_they_should_be_are_not_complained_about(here: Station) -> None:
    app = here.app()
    app.consumer("birdnet", table=here.table, state="analysis_state")(lambda row: None)
    app.janitor("housekeeping", **common(here, min_free="30%", after=["birdnet"], where="uploaded"))
    app.janitor("defensive", **common(here, min_free="20%", where="uploaded"))
    app.janitor("panic", **common(here, min_free="10%", cap=50))
    assert said(app, "tiers") == []


def test_an_ingest_and_a_janitor_that_read_paths_differently_are_said(here: Station) -> None:
    app = here.app()
    app.ingest("microphones", **common(here))
    app.janitor("one", **common(here, min_free="1%", paths="absolute"))
    app.janitor("two", **common(here, min_free="1%", path="file_raw"))
    first, second = said(app, "paths")
    assert first.level == "error" and "writes relative paths" in first.message
    assert "leaves the files of file_processed" in second.message


def test_consumers_in_modules_that_are_not_imported_yet_are_found(
    here: Station, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "analysers_of_this_test.py").write_text(
        "import rowlock_app_of_this_test as home\n"
        "home.app.consumer('birdnet', table='recordings', state='analysis_state')(lambda row: None)\n"
    )
    (tmp_path / "rowlock_app_of_this_test.py").write_text("app = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import rowlock_app_of_this_test as home  # type: ignore[import-not-found]

    app = here.app(include=["analysers_of_this_test"])
    home.app = app
    app.janitor("housekeeping", **common(here, min_free="1%", after=["birdnet"])).check()
    assert os.path.isdir(here.folder)
