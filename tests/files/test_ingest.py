"""Ingest: one row per finished file, once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError, Rowlock
from rowlock.files import folder_watch
from rowlock.files import ingest as ingest_module
from rowlock.files.ingest import Ingest
from tests.eventually import eventually
from tests.files.station import LONG_AGO, Station

BOTH = ["file_raw", "file_processed"]
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX file systems only")


def declared(station: Station, app: Rowlock | None = None, **chosen: Any) -> Ingest:
    given: dict[str, Any] = {
        "table": station.table,
        "folder": station.folder,
        "pattern": "**/*.wav",
        "path": BOTH,
        "paths": "relative",
        **chosen,
    }
    return (app or station.app()).ingest("microphones", **given)


def test_each_finished_file_gets_one_row_and_no_second(station: Station) -> None:
    station.create()
    station.write("day/a b.wav")
    station.write("new\nline.wav")
    station.write("other.txt")
    made = declared(station, row=lambda path: {"time": LONG_AGO, "station": path.name})
    assert sorted(made.run_once().ingested) == ["day/a b.wav", "new\nline.wav"]
    again = declared(station).run_once()
    assert again.ingested == [] and again.known == 2
    assert sorted(station.rows("file_raw", "station")) == [
        ("day/a b.wav", "a b.wav"),
        ("new\nline.wav", "new\nline.wav"),
    ]


def test_absolute_paths_are_the_default(station: Station) -> None:
    station.create()
    path = station.write("a.wav")
    declared(station, paths="absolute", path="file_raw").run_once()
    assert station.column("file_raw") == [str(path)]


def test_a_file_that_somebody_still_writes_is_left_until_it_stands_still(station: Station) -> None:
    station.create()
    now = time.time()
    station.write("a.wav", age=1.0, now=now)
    made = declared(station, settle=2.0)
    assert made.run_once(now=now).settling == ["a.wav"]
    station.write("a.wav", b"RIFF and more", age=-1.0, now=now)
    assert made.run_once(now=now + 2.5).ingested == []
    assert made.run_once(now=now + 3.5).ingested == ["a.wav"]


def test_a_file_from_the_future_is_taken_after_it_was_watched_for_long_enough(station: Station) -> None:
    station.create()
    station.write("a.wav", age=-3_600)  # the clock was set back since
    made = declared(station, settle=0.05)
    assert made.run_once().ingested == []
    assert eventually(lambda: made.run_once().ingested) == ["a.wav"]


def test_an_empty_file_waits_for_its_content(station: Station) -> None:
    station.create()
    station.write("a.wav", b"")
    made = declared(station)
    assert made.run_once().settling == ["a.wav"]
    station.write("a.wav", b"RIFF")
    assert made.run_once().ingested == ["a.wav"]


def test_a_file_that_changes_while_its_row_is_made_is_not_ingested_yet(station: Station) -> None:
    station.create()
    station.write("a.wav")
    sizes = iter([b"longer than before"])

    def row(path: Path) -> dict[str, Any]:
        for more in sizes:
            station.write("a.wav", more)
        return {}

    made = declared(station, row=row)
    assert made.run_once().ingested == []
    assert station.column("file_raw") == []
    assert made.run_once().ingested == ["a.wav"]


def test_a_file_that_vanishes_is_no_trouble(station: Station) -> None:
    station.create()
    station.write("a.wav")
    made = declared(station, row=lambda path: path.unlink() or {})
    report = made.run_once()
    assert report.ingested == [] and report.failed == [] and station.column("file_raw") == []


def test_a_renamed_file_is_a_new_file(station: Station) -> None:
    station.create()
    path = station.write("a.wav")
    made = declared(station)
    made.run_once()
    path.rename(station.folder / "b.wav")
    assert made.run_once().ingested == ["b.wav"]
    assert sorted(station.column("file_raw")) == ["a.wav", "b.wav"]


def test_a_file_that_another_path_column_names_is_not_ingested(station: Station) -> None:
    station.create()
    station.write("raw/a.wav")
    station.write("processed/a.wav")

    def row(path: Path) -> dict[str, Any] | None:
        if path.parent.name == "processed":
            return None
        return {"file_processed": station.folder / "processed" / path.name}

    made = declared(station, row=row)
    made.run_once()
    assert station.rows(*BOTH) == [("raw/a.wav", "processed/a.wav")]
    assert made.run_once().known == 2 and station.records()["processed/a.wav"] == "ingested"


@pytest.mark.parametrize("with_tx", [False, True])
def test_a_file_that_a_row_of_the_same_scan_names_gets_none_of_its_own(
    station: Station, with_tx: bool
) -> None:
    station.create()
    station.write("raw/a.wav", age=200)
    station.write("processed/a.wav", age=100)
    asked: list[str] = []

    def describe(path: Path) -> dict[str, Any]:
        asked.append(path.parent.name)
        other = station.folder / "processed" / path.name
        return {"time": LONG_AGO, "file_processed": None if other == path else other}

    made = declared(station, row=(lambda path, tx: describe(path)) if with_tx else describe)
    report = made.run_once()
    assert station.rows("file_raw", "file_processed") == [("raw/a.wav", "processed/a.wav")]
    assert report.ingested == ["raw/a.wav"] and report.known == 1
    assert asked == ["raw"] or not with_tx
    assert made.run_once().known == 2


@pytest.mark.parametrize("with_tx", [False, True])
def test_a_row_waits_until_its_other_files_are_finished_too(station: Station, with_tx: bool) -> None:
    station.create()
    mark = station.mark
    told = f"{station.prefix}told"
    station.execute(f"CREATE TABLE {told} (name TEXT)")
    now = time.time()
    station.write("a.wav", age=100, now=now)
    station.write("p/a.wav", age=1, now=now)

    def row(path: Path, tx: Any) -> dict[str, Any]:
        if tx is not None:
            tx.execute(f"INSERT INTO {told} VALUES ({mark})", (path.name,))
        return {"file_processed": "p/a.wav"}

    made = declared(station, pattern="*.wav", row=row if with_tx else (lambda path: row(path, None)))
    report = made.run_once(now=now)
    assert report.settling == ["a.wav"] and station.column("file_raw") == []
    assert station.execute(f"SELECT count(*) FROM {told}") == [(0,)]  # undone with the row
    assert made.run_once(now=now + 2).ingested == ["a.wav"]
    assert station.records() == {"a.wav": "ingested", "p/a.wav": "ingested"}


def test_none_means_not_yet_and_is_asked_again_at_each_scan(station: Station) -> None:
    station.create()
    station.write("a.wav")
    answers = iter([None, None, {}])
    made = declared(station, row=lambda path: next(answers))
    assert made.run_once().waiting == ["a.wav"] and made.record().waiting == 1
    assert made.run_once().waiting == ["a.wav"]
    assert made.run_once().ingested == ["a.wav"] and made.record().waiting == 0


def test_false_means_never_and_is_remembered(station: Station) -> None:
    station.create()
    path = station.write("a.wav")
    assert declared(station, row=lambda path: False).run_once().never == 1
    later = declared(station, row=lambda path: {})
    assert later.run_once().never == 1
    path.unlink()
    later.run_once()
    assert station.records() == {}
    station.write("a.wav")  # another file, although of the same name
    assert later.run_once().ingested == ["a.wav"]


def test_a_function_that_raises_is_logged_once_tried_again_later_and_blocks_nobody(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    station.create()
    station.write("bad.wav")
    station.write("good.wav")
    calls = []

    def row(path: Path) -> dict[str, Any]:
        if path.name == "bad.wav":
            calls.append(path)
            raise ValueError("no header")
        return {}

    now = time.time()
    made = declared(station, row=row)
    report = made.run_once(now=now)
    assert report.ingested == ["good.wav"] and "no header" in report.failed[0].why
    again = made.run_once(now=now + 10)
    assert (again.failed, again.later) == ([], ["bad.wav"]) and len(calls) == 1
    assert len(made.run_once(now=now + 31).failed) == 1
    assert made.run_once(now=now + 61).failed == [] and len(calls) == 2  # the pause has doubled
    assert len([one for one in caplog.records if "no header" in one.getMessage()]) == 1
    assert made.record().failed == 1
    station.write("bad.wav", b"mended by hand")
    made.run_once(now=now + 62)
    assert len(calls) == 3


def test_a_clock_that_was_moved_back_makes_no_pause_longer(sqlite_station: Station) -> None:
    sqlite_station.create()
    sqlite_station.write("bad.wav", age=86_400 * 60)
    made = declared(sqlite_station, row=lambda path: {"no_such_column": 1})
    assert len(made.run_once().failed) == 1
    assert len(made.run_once(now=time.time() - 86_400 * 30).failed) == 1


def test_a_row_that_the_database_refuses_spares_the_others(station: Station) -> None:
    station.create()
    for name in ("a.wav", "b.wav", "c.wav"):
        station.write(name)
    made = declared(station, row=lambda path: {"no_such_column": 1} if path.name == "b.wav" else {})
    report = made.run_once()
    assert sorted(report.ingested) == ["a.wav", "c.wav"]
    assert "no such column" in report.failed[0].why
    station.write("d.wav")
    station.write("e.wav")
    twice = station.column("id")[0]
    if station.is_sqlite:  # PostgreSQL's identity column takes no value at all
        made = declared(station, row=lambda path: {"id": twice} if path.name == "d.wav" else {})
        report = made.run_once()
        assert report.ingested == ["e.wav"] and report.failed[0].path == "d.wav"


def test_a_function_may_write_in_the_transaction_of_the_row(station: Station) -> None:
    station.create()
    station.execute(f"CREATE TABLE {station.prefix}notes (path TEXT)")
    mark = "?" if station.is_sqlite else "%s"
    for name in ("a.wav", "bad.wav", "c.wav"):
        station.write(name)

    def row(path: Path, tx: Any) -> dict[str, Any]:
        tx.execute(f"INSERT INTO {station.prefix}notes VALUES ({mark})", (path.name,))
        if path.name == "bad.wav":
            tx.execute("SELECT nonsense FROM nowhere")
        return {"station": tx.execute("SELECT 'north'").fetchone()[0]}

    report = declared(station, row=row).run_once()
    assert sorted(report.ingested) == ["a.wav", "c.wav"] and report.failed[0].path == "bad.wav"
    assert sorted(station.execute(f"SELECT path FROM {station.prefix}notes")) == [("a.wav",), ("c.wav",)]
    assert station.records()["bad.wav"] == "failed"


def test_a_statement_of_the_users_that_fails_is_told_in_the_databases_words(station: Station) -> None:
    station.create()
    station.write("a.wav")
    made = declared(station, row=lambda path, tx: tx.execute("INSERT INTO nowhere VALUES (1)"))
    (failed,) = made.run_once().failed
    assert "nowhere" in failed.why and "queue" not in failed.why


def test_values_of_every_usual_kind_are_written(station: Station) -> None:
    station.create()
    station.write("a.wav")
    when = datetime(2026, 2, 18, 4, 5, 6, tzinfo=timezone.utc)
    row = {"deleted_at": when, "analysis_state": {"birdnet": True}, "time": 1.5, "uploaded": True}
    declared(station, row=lambda path: row).run_once()
    assert station.execute(f"SELECT time, uploaded FROM {station.table}") == [(1.5, True)]
    ((stamp, state),) = station.rows("deleted_at", "analysis_state")
    assert (stamp, state) in [("2026-02-18 04:05:06+00:00", '{"birdnet": true}'), (when, {"birdnet": True})]


@pytest.mark.parametrize(
    "value",
    ["../outside.wav", "/etc/passwd", 5, "a/../b.wav", b"a.wav"],
    ids=["up", "elsewhere", "no", "in", "b"],
)
def test_a_path_that_leads_out_of_the_folder_is_an_error_of_that_file(station: Station, value: Any) -> None:
    station.create()
    station.write("a.wav")
    report = declared(station, row=lambda path: {"file_processed": value}).run_once()
    assert len(report.failed) == 1 and station.column("file_raw") == []


def test_what_is_no_answer_is_an_error_of_that_file(station: Station) -> None:
    station.create()
    station.write("a.wav")
    report = declared(station, row=lambda path: "a row").run_once()
    assert "None (not yet) or False (never)" in report.failed[0].why


@posix
def test_links_are_not_ingested(station: Station) -> None:
    station.create()
    outside = station.folder.parent / "outside"
    outside.mkdir()
    (outside / "a.wav").write_bytes(b"RIFF")
    (station.folder / "link.wav").symlink_to(outside / "a.wav")
    (station.folder / "folder").symlink_to(outside)
    assert declared(station, settle=0.0).run_once().ingested == []


@posix
def test_a_name_that_is_not_utf_8_is_reported_once_and_left_alone(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    station.create()
    station.write("a.wav")
    Path(os.fsdecode(os.fsencode(station.folder) + b"/\xff.wav")).write_bytes(b"RIFF")
    made = declared(station)
    assert made.run_once().ingested == ["a.wav"]
    assert len(made.run_once().unreadable) == 1
    assert len([one for one in caplog.records if "not UTF-8" in one.getMessage()]) == 1


def test_the_queues_own_database_in_the_folder_is_not_ingested(tmp_path: Path) -> None:
    (tmp_path / "recorder").mkdir()
    station = Station(f"sqlite:///{tmp_path / 'recorder' / 'queue.db'}", tmp_path / "other")
    station.folder = tmp_path / "recorder"
    station.create()
    station.write("a.wav")
    assert declared(station, pattern="**", settle=0.0).run_once().ingested == ["a.wav"]
    station.close()


def test_two_ingests_at_once_write_one_row_per_file(station: Station) -> None:
    station.create()
    for number in range(200):
        station.write(f"{number}.wav")
    reports: list[Any] = []
    makers = [declared(station, station.app()) for _ in range(2)]
    threads = [threading.Thread(target=lambda made=made: reports.append(made.run_once())) for made in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(report.ingested) for report in reports) == 200
    assert len(station.column("file_raw")) == 200


def test_consumers_are_woken(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.create()
    station.write("a.wav")
    app = station.app()
    woken: list[str] = []
    monkeypatch.setattr(app, "wake", woken.append)
    made = declared(station, app)
    made.run_once()
    made.run_once()
    assert woken == [station.table]


def test_many_files_tell_how_far_they_are(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.create()
    monkeypatch.setattr(ingest_module, "_BATCH", 2)
    for number in range(5):
        station.write(f"{number}.wav")
    told: list[tuple[int, int]] = []
    declared(station).run_once(progress=lambda *one: told.append(one))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_what_is_known_of_a_file_is_forgotten_when_it_and_its_row_are_gone(station: Station) -> None:
    station.create()
    for name in ("a.wav", "b.wav"):
        station.write(name)
    declared(station).run_once()
    (station.folder / "a.wav").unlink()
    declared(station).run_once()
    assert station.records() == {"a.wav": "ingested", "b.wav": "ingested"}
    station.execute(f"DELETE FROM {station.table} WHERE file_raw = 'a.wav'")
    declared(station).run_once()
    assert station.records() == {"b.wav": "ingested"} and station.column("file_raw") == ["b.wav"]


# -- as a service ----------------------------------------------------------------------------------


@contextmanager
def serving(made: Ingest) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield thread
    finally:
        made.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_slow_writer_is_ingested_once_and_whole(sqlite_station: Station) -> None:
    station = sqlite_station
    station.create()
    sizes = []
    made = declared(
        station, settle=60.0, interval=0.1, row=lambda path: sizes.append(path.stat().st_size) or {}
    )
    with serving(made):
        with (station.folder / "slow.wav").open("wb") as file:
            for _ in range(8):
                file.write(b"x" * 1_000)
                file.flush()
                threading.Event().wait(0.1)
        station.touch("slow.wav", age=61.0)  # as if it had stood still for so long
        eventually(lambda: station.column("file_raw"))
    assert sizes == [8_000] and station.column("file_raw") == ["slow.wav"]


def test_a_watched_file_is_taken_long_before_the_next_scan(station: Station) -> None:
    station.create()
    made = declared(station, settle=0.05, interval=600.0)
    with serving(made):
        eventually(lambda: made.record().last_run is not None)
        station.write("day/a.wav", age=0)
        eventually(lambda: station.column("file_raw") == ["day/a.wav"])
        station.write("day/b.wav", age=0)
        eventually(lambda: len(station.column("file_raw")) == 2)


def test_without_watchfiles_scans_alone_find_everything(
    sqlite_station: Station, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    station = sqlite_station
    station.create()
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    monkeypatch.setattr(folder_watch, "_told_missing", False)
    with serving(declared(station, settle=0.05, interval=0.1)):
        station.write("a.wav", age=0)
        eventually(lambda: station.column("file_raw") == ["a.wav"])
    assert "pip install 'rowlock[files]'" in caplog.text


@posix
def test_the_watcher_survives_a_name_that_is_not_utf_8(
    sqlite_station: Station, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    station = sqlite_station
    station.create()
    monkeypatch.setattr(folder_watch, "_AGAIN", 0.05)
    made = declared(station, settle=0.05, interval=600.0)
    with serving(made):
        eventually(lambda: made.record().last_run is not None)
        Path(os.fsdecode(os.fsencode(station.folder) + b"/\xff.wav")).write_bytes(b"RIFF")
        station.write("a.wav", age=0)
        eventually(lambda: station.column("file_raw") == ["a.wav"])
        station.write("b.wav", age=0)
        eventually(lambda: len(station.column("file_raw")) == 2)
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert not [line for line in told if "watcher failed" in line]


def test_a_folder_that_is_away_for_a_while_is_taken_up_again(
    sqlite_station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    station = sqlite_station
    station.create()
    made = declared(station, settle=0.05, interval=0.1)
    with serving(made):
        eventually(lambda: made.record().last_run is not None)
        station.folder.rename(station.folder.with_name("away"))
        eventually(lambda: "does not exist" in caplog.text)
        station.folder.with_name("away").rename(station.folder)
        station.write("a.wav", age=0)
        eventually(lambda: station.column("file_raw") == ["a.wav"])
    assert len([one for one in caplog.records if "does not exist" in one.getMessage()]) == 1


def test_a_file_that_comes_before_its_folder_is_watched_is_found(
    sqlite_station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station, watch, begin = sqlite_station, folder_watch._watchfiles(), threading.Event()
    station.create()

    def late(*given: Any, **named: Any) -> Iterator[Any]:
        begin.wait(30)
        yield from watch(*given, **named)

    monkeypatch.setattr(folder_watch, "_LOOK", 100)
    monkeypatch.setattr(folder_watch, "_watchfiles", lambda: late)
    made = declared(station, settle=0.05, interval=600.0)
    with serving(made):
        eventually(lambda: made.record().last_run is not None)
        station.write("a.wav", age=0)
        begin.set()
        eventually(lambda: station.column("file_raw") == ["a.wav"])


def test_a_folder_that_is_made_anew_is_watched_again(
    sqlite_station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = sqlite_station
    station.create()
    monkeypatch.setattr(folder_watch, "_LOOK", 100)
    made = declared(station, settle=0.05, interval=600.0)
    with serving(made):
        eventually(lambda: made.record().last_run is not None)
        station.folder.rename(station.folder.with_name("old"))
        station.folder.mkdir()
        station.write("a.wav", age=0)
        eventually(lambda: station.column("file_raw") == ["a.wav"])
        station.write("b.wav", age=0)
        eventually(lambda: len(station.column("file_raw")) == 2)


# -- what is refused -------------------------------------------------------------------------------


def test_a_table_without_the_unique_constraint_is_refused_until_it_is_created(station: Station) -> None:
    station.create(unique=False)
    station.write("a.wav")
    made = declared(station)
    with pytest.raises(ConfigurationError, match="rowlock ingest module:app --init"):
        made.run_once()
    made.init()
    assert made.run_once().ingested == ["a.wav"]


def test_a_constraint_that_rows_contradict_cannot_be_created(station: Station) -> None:
    station.create(unique=False)
    for _ in range(2):
        station.execute(f"INSERT INTO {station.table} (file_raw) VALUES ('a.wav')")
    with pytest.raises(ConfigurationError, match="cannot be created"):
        declared(station).init()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"table": "nowhere"}, "there is no table nowhere"),
        ({"path": "no_column"}, "path='no_column', but .* has no such column"),
        ({"folder": "nowhere"}, "does not exist"),
    ],
)
def test_what_is_not_there_is_said_at_the_start(station: Station, wrong: dict[str, Any], told: str) -> None:
    station.create()
    with pytest.raises(ConfigurationError, match=told):
        declared(station, **wrong).check()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"paths": "relativ"}, "paths='relativ'"),
        ({"path": []}, r"path=\[\]"),
        ({"path": ["a", "a"]}, "a list of different ones"),
        ({"settle": -1}, "settle=-1"),
        ({"settle": None}, "settle=None"),
        ({"interval": 0}, "interval=0"),
        ({"row": 5}, "row=5"),
        ({"row": lambda: None}, "must be a function of"),
        ({"pattern": "/x"}, "pattern="),
        ({"table": "rowlock_jobs"}, "rowlock's own tables"),
        ({"typo": 1}, "app.ingest: unknown option 'typo'; there are: folder, interval, path"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_declared(
    app: Rowlock, wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        app.ingest("microphones", **{"table": "recordings", "folder": "recorder", **wrong})


def test_two_ingests_of_one_name_are_refused(app: Rowlock) -> None:
    app.ingest("microphones", table="recordings", folder="one")
    app.ingest("microphones", table="recordings", folder="one")  # a module that is imported twice
    with pytest.raises(ConfigurationError, match="want the name 'microphones'"):
        app.ingest("microphones", table="recordings", folder="two")


def test_what_must_be_given_is_named(app: Rowlock) -> None:
    with pytest.raises(ConfigurationError, match=r"app.ingest: give it folder=\.\.\., table=\.\.\."):
        app.ingest("microphones")  # type: ignore[call-arg]


def test_to_declare_opens_nothing(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.ingest("microphones", table="recordings", folder=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
