"""The janitor: what a limit asks for and the conditions allow, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError, Retry, Rowlock, Status
from rowlock.errors import StoreError
from rowlock.files import disk, janitor_run, policy
from rowlock.files import janitor as janitor_module
from rowlock.files.disk import Space
from rowlock.files.folder import FileRefused, OpenFolder
from rowlock.files.janitor import Janitor
from rowlock.files.service import ErrorBackoff
from tests.eventually import eventually
from tests.files.station import LONG_AGO, Station

BOTH = ["file_raw", "file_processed"]
SIZE = 4096
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX file systems only")


def declared(
    station: Station, name: str = "housekeeping", app: Rowlock | None = None, **chosen: Any
) -> Janitor:
    given: dict[str, Any] = {
        "table": station.table,
        "folder": station.folder,
        "path": BOTH,
        "paths": "relative",
        "order_by": "time",
        "deleted": "local_deleted",
        **chosen,
    }
    if not {"min_free", "max_age", "max_size"} & set(given):
        given["max_age"] = "1h"
    return (app or station.app()).janitor(name, **given)


def names(*numbers: int) -> list[str]:
    return [f"{number:05}.wav" for number in numbers]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, station: Station) -> Callable[[int], None]:
    """A disk of so many files' size, which the files of the station fill; 100 blocks in all by default."""

    def pretend(total: int = 100) -> None:
        def space(folder: str) -> Space:
            used = sum(path.stat().st_blocks * 512 for path in station.folder.rglob("*") if path.is_file())
            return Space(total * SIZE, total * SIZE - used)

        monkeypatch.setattr(disk, "space", space)

    return pretend


# -- limits ----------------------------------------------------------------------------------------


def test_what_is_too_old_goes_and_the_table_is_told(station: Station) -> None:
    station.create()
    now = time.time()
    station.add(1, processed=True)
    station.add(2, time=now - 7_200)
    station.add(3, time=now - 1_800)
    report = declared(station, max_age="1h").run_once()
    assert [row.paths for row in report.deleted] == [["00001.wav", "p/00001.wav"], ["00002.wav"]]
    assert report.freed >= 3 * SIZE and report.deleted[0].why == "older than 1 h"
    assert station.files() == names(3) and station.deleted() == names(1, 2)
    assert station.marks() == []


def test_no_more_than_the_cap_go_in_one_run_oldest_first(station: Station) -> None:
    station.create()
    for number in (3, 1, 2, 4):
        station.add(number)
    made = declared(station, cap=2)
    made.run_once()
    assert station.deleted() == names(1, 2)
    made.run_once()
    assert station.deleted() == names(1, 2, 3, 4)


def test_the_oldest_go_until_the_rest_fits(station: Station) -> None:
    station.create()
    for number in range(1, 6):
        station.add(number)
    report = declared(station, max_size=3 * SIZE).run_once()
    assert station.deleted() == names(1, 2) and report.short is None
    assert declared(station, max_size=3 * SIZE).run_once().deleted == []


@pytest.mark.parametrize("order_by", [None, "id", "time"])
def test_rows_with_equal_times_go_in_the_order_of_their_keys(station: Station, order_by: str | None) -> None:
    station.create()
    for number in range(1, 13):
        station.add(number, time=LONG_AGO)
    declared(station, order_by=order_by, max_size=9 * SIZE).run_once()
    assert station.files() == names(*range(4, 13))


def test_rows_on_every_page_are_met_once(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_PAGE", 5)
    station.create()
    for number in range(1, 24):
        station.add(number)
    assert len(declared(station, max_size=20 * SIZE).run_once().deleted) == 3
    for path in station.files()[1:]:
        (station.folder / path).unlink()
    assert declared(station, max_size=20 * SIZE).run_once().healed == 19


def test_the_disk_is_cleared_from_below_the_minimum_up_to_the_target(
    station: Station, full_disk: Callable[..., None]
) -> None:
    station.create()
    for number in range(1, 11):
        station.add(number)
    full_disk(20)  # 10 of 20 are free
    assert declared(station, min_free="50%", target_free="70%").run_once().deleted == []
    report = declared(station, min_free="55%", target_free="70%").run_once()
    assert station.deleted() == names(1, 2, 3, 4) and not report.too_full
    assert report.deleted[0].why.startswith("less than")


def test_each_limit_is_a_reason_of_its_own(station: Station, full_disk: Callable[..., None]) -> None:
    station.create()
    now = time.time()
    station.add(1)
    for number in range(2, 5):
        station.add(number, time=now - 100 + number)
    full_disk(6)  # 2 of 6 are free; the old one makes it 3
    report = declared(station, max_age="1h", max_size=2 * SIZE, min_free="80%").run_once()
    assert [row.why.split()[0] for row in report.deleted] == ["older", "more", "less"]
    assert station.deleted() == names(1, 2, 3)


def test_a_disk_that_stays_too_full_is_one_loud_error(
    station: Station, full_disk: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    station.create()
    station.add(1)
    station.add(2, uploaded=True)
    full_disk(2)
    made = declared(station, min_free="90%", where="uploaded")
    report = made.run_once()
    assert report.too_full and report.kept == 1 and station.deleted() == names(2)
    made.run_once()
    assert len([one for one in caplog.records if "too full" in one.getMessage()]) == 1
    station.execute(f"UPDATE {station.table} SET uploaded = true")
    assert not made.run_once().too_full
    assert "within its limits again" in caplog.text


def test_a_limit_function_need_not_use_the_transaction_that_it_is_given(station: Station) -> None:
    station.create()
    station.add(1)
    answers = iter([None, "1h"])
    made = declared(station, max_age=lambda tx: next(answers))
    assert made.run_once().deleted == [] and station.files() == names(1)
    assert len(made.run_once().deleted) == 1


def test_a_second_tier_does_not_take_the_name_of_the_first(station: Station) -> None:
    app = station.app()
    declared(station, app=app, min_free="30%")
    declared(station, app=app, min_free="30%")  # a module that was imported twice
    for other in (
        {"min_free": "10%"},
        {"min_free": "30%", "cap": 50},
        {"min_free": "30%", "where": "uploaded"},
    ):
        with pytest.raises(ConfigurationError, match="two different services want the name 'housekeeping'"):
            declared(station, app=app, **other)


def test_limits_may_be_functions_that_are_asked_at_each_run(station: Station) -> None:
    station.create()
    station.add(1)
    station.execute(f"CREATE TABLE {station.prefix}settings (days INTEGER)")

    def days(tx: Any) -> str | None:
        row = tx.execute(f"SELECT days FROM {station.prefix}settings").fetchone()
        return None if row is None else f"{row[0]}d"

    made = declared(station, max_age=days)
    assert made.run_once().deleted == []
    station.execute(f"INSERT INTO {station.prefix}settings VALUES (30)")
    assert len(made.run_once().deleted) == 1


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_age": lambda: 1 / 0}, "max_age() raised ZeroDivisionError('division by zero')"),
        ({"min_free": lambda: "lots"}, "min_free='lots'"),
        ({"min_free": lambda: "50%", "target_free": "20%"}, "below min_free"),
        ({"max_age": lambda tx: tx.execute("SELECT nonsense")}, "nonsense"),
    ],
)
def test_a_limit_that_cannot_be_read_skips_the_tier_loudly(
    station: Station, limits: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    station.create()
    station.add(1)
    report = declared(station, **limits).run_once()
    assert told in str(report.skipped) and station.deleted() == []
    assert "nothing is deleted" in caplog.text


def test_a_statement_of_a_limit_that_fails_is_told_in_the_databases_words(station: Station) -> None:
    station.create()
    made = declared(station, max_age=lambda tx: tx.execute("SELECT age FROM nowhere").fetchone()[0])
    skipped = str(made.run_once().skipped)
    assert "nowhere" in skipped and "queue" not in skipped


def test_time_is_a_parameter(station: Station) -> None:
    station.create()
    now = time.time()
    station.add(1, time=now)
    made = declared(station, max_age="1h")
    assert made.run_once(now=now + 3_000).deleted == []
    assert len(made.run_once(now=now + 4_000).deleted) == 1
    station.add(2, time=now)
    assert made.run_once(now=now - 86_400).deleted == []  # the clock was set back


# -- conditions ------------------------------------------------------------------------------------


def birdnet(station: Station, app: Rowlock, name: str = "birdnet", **chosen: Any) -> None:
    given = {"table": station.table, "state": "analysis_state", "order_by": "time", **chosen}
    app.consumer(name, **given)(lambda recording: None)


def test_only_what_every_consumer_is_done_with_goes(station: Station) -> None:
    station.create()
    app = station.app()
    birdnet(station, app)
    birdnet(station, app, "batdetect")
    for number, state in enumerate(
        [
            '{"birdnet": true, "batdetect": {"calls": 2}}',
            '{"birdnet": true}',
            None,
            '{"birdnet": true, "batdetect": null}',
        ],
        1,
    ):
        station.add(number, analysis_state=state)
    report = declared(station, app=app, after=["birdnet", "batdetect"]).run_once()
    assert station.deleted() == names(1) and report.kept == 3


def test_failed_rows_count_as_finished_if_that_is_said(station: Station) -> None:
    station.create()
    app = station.app()
    birdnet(station, app)
    station.add(1, analysis_state='{"birdnet": {"failed": "no header", "attempts": 3}}')
    assert declared(station, app=app, after=["birdnet"]).run_once().deleted == []
    assert len(declared(station, "lenient", app, after=["birdnet"], failed_too=True).run_once().deleted) == 1


def test_a_consumer_with_a_status_column_is_asked_in_its_own_words(station: Station) -> None:
    station.create()
    app = station.app()
    words = Status("station", due="new", running="busy", done="finished", failed="broken")
    birdnet(station, app, state=None, status=words)
    for number, word in enumerate(["finished", "new", "busy", "broken"], 1):
        station.add(number, station=word)
    declared(station, app=app, after=["birdnet"]).run_once()
    assert station.deleted() == names(1)


def test_a_condition_may_be_any_sql_on_the_row(station: Station) -> None:
    station.create()
    station.execute(f"CREATE TABLE {station.prefix}settings (upload {station.types['bool']})")
    station.execute(f"INSERT INTO {station.prefix}settings VALUES (true)")
    station.add(1, station="100%")
    station.add(2, uploaded=True, station="100%")
    where = (
        f"station LIKE '%0%' AND (uploaded OR NOT (SELECT upload FROM {station.prefix}settings)) -- so far"
    )
    made = declared(station, where=where)
    made.run_once()
    assert station.deleted() == names(2)
    station.execute(f"UPDATE {station.prefix}settings SET upload = false")
    made.run_once()
    assert station.deleted() == names(1, 2)


def test_a_row_that_a_consumer_holds_is_not_touched(station: Station) -> None:
    station.create()
    app = station.app()
    busy, go = threading.Event(), threading.Event()

    @app.consumer("birdnet", table=station.table, state="analysis_state", order_by="time", retry=Retry(1))
    def hold(recording: Any) -> None:
        busy.set()
        go.wait(100)

    station.add(1)
    other = station.app()  # one that does not know the consumer
    with app.consuming("birdnet", concurrency=1).background():
        assert busy.wait(60)
        report = declared(station, app=other).run_once()
        assert report.deleted == [] and report.kept == 1
        assert declared(station, "panic", app, after=()).run_once().deleted == []
        go.set()
        eventually(
            lambda: (
                '{"birdnet":true}'
                in str(station.column("analysis_state")).replace(" ", "").replace("'", '"').replace("T", "t")
            )
        )
    assert station.files() == names(1)
    assert len(declared(station, app=other).run_once().deleted) == 1


def spellings(station: Station) -> list[tuple[str, str]]:
    """Other names of the same table, and the URL with which they are right."""
    if station.is_sqlite:
        return [(station.url, "main.recordings"), (station.url, "Recordings")]
    schema = station.prefix.rstrip(".")
    return [(f"{station.url}&options=-csearch_path%3D{schema}", "recordings")]


def test_a_held_row_is_not_touched_however_its_table_is_spelled(station: Station) -> None:
    station.create()
    station.add(1)
    station.app().store.open()
    (key,) = station.column("id")
    claims = f"{station.prefix}rowlock_consumer_claims (consumer, row_key, claimed_by)"
    text = key if station.is_sqlite else str(key)
    station.execute(f"INSERT INTO {claims} VALUES ('birdnet', ?, 'somebody')", (text,))
    for url, table in spellings(station):
        with closing(Rowlock(url)) as app:
            birdnet(station, app)
            report = declared(station, app=app, table=table).run_once()
            assert report.deleted == [] and report.kept == 1
            assert declared(station, "after", app, table=table, after=["birdnet"]).run_once().kept == 1


def test_no_consumer_loses_a_file_under_its_hands(station: Station) -> None:
    station.create()
    app = station.app()
    trouble: list[str] = []
    seen: list[int] = []
    begun = threading.Event()

    @app.consumer(
        "birdnet", table=station.table, state="analysis_state", order_by="time", where="NOT local_deleted"
    )
    def listen(recording: Any) -> None:
        begun.set()
        for _ in range(3):
            if not (station.folder / recording.file_raw).exists():
                trouble.append(recording.file_raw)
            threading.Event().wait(0.01)
        seen.append(recording.id)

    for number in range(1, 61):
        station.add(number, size=1)
    made = declared(station, "panic", station.app(), cap=8, interval=0.02)
    janitor = threading.Thread(target=lambda: begun.wait(100) and made.run())
    janitor.start()
    try:
        app.consume("birdnet", until_empty=True, concurrency=2)
        eventually(station.deleted)
    finally:
        made.stop()
        janitor.join(timeout=60)
    assert trouble == [] and seen


def test_tiers_protect_what_is_not_uploaded_until_the_last_one(
    station: Station, full_disk: Callable[..., None]
) -> None:
    station.create()
    app = station.app()
    birdnet(station, app)
    for number in range(1, 21):
        station.add(
            number, uploaded=number % 4 < 2, analysis_state='{"birdnet": true}' if number % 2 else None
        )
    tiers = [
        declared(station, "housekeeping", app, min_free="30%", after=["birdnet"], where="uploaded"),
        declared(station, "defensive", app, min_free="20%", where="uploaded"),
        declared(station, "panic", app, min_free="10%", cap=50),
    ]

    def run(total: int) -> list[int]:
        full_disk(total)
        reports = [tier.run_once() for tier in tiers]
        assert not any(report.too_full for report in reports[:2])  # that is for the last one to say
        return [len(report.deleted) for report in reports]

    assert run(26) == [2, 0, 0]  # 6 of 26 are free, 8 are wanted
    assert run(20) == [3, 0, 0]  # 2 + 3 of 20: nothing else is analysed, but 5 are enough for the others
    assert run(17) == [0, 2, 0]
    protected = [raw for raw, uploaded in station.rows("file_raw", "uploaded") if not uploaded]
    assert set(protected) <= set(station.files())
    assert run(10)[2] > 0  # panic
    assert not set(protected) <= set(station.files())


# -- what is written -------------------------------------------------------------------------------


def test_a_time_column_is_stamped(station: Station) -> None:
    station.create()
    station.add(1)
    made = declared(station, deleted="deleted_at")
    made.run_once()
    assert station.column("deleted_at") != [None]
    station.write("00001.wav")  # whatever that is: the row says that it was deleted
    assert made.run_once().deleted == [] and station.files() == names(1)


def test_rows_are_removed_if_that_is_said(station: Station) -> None:
    station.create()
    station.add(1)
    station.add(2, time=time.time())
    declared(station, deleted=None, remove_rows=True).run_once()
    assert station.column("file_raw") == names(2) and station.files() == names(2)


def test_without_either_the_row_stays_and_is_not_met_again(station: Station) -> None:
    station.create()
    for number in range(1, 4):
        station.add(number)
    made = declared(station, deleted=None, cap=2)
    assert len(made.run_once().deleted) == 2 and len(made.run_once().deleted) == 1
    assert made.run_once().healed == 0 and len(station.column("file_raw")) == 3


def test_a_row_whose_files_are_gone_already_is_marked_at_the_start(station: Station) -> None:
    station.create()
    (station.folder / station.add(1, time=time.time())).unlink()
    station.add(2, time=time.time(), processed=True)
    (station.folder / "00002.wav").unlink()  # the other one is still there
    station.execute(f"INSERT INTO {station.table} (time) VALUES (1)")  # names no file at all
    assert declared(station).run_once().healed == 1
    assert station.deleted() == names(1)


def test_a_row_whose_files_are_gone_already_is_marked_when_it_is_met(station: Station) -> None:
    station.create()
    made = declared(station)
    made.run_once()
    (station.folder / station.add(1)).unlink()
    report = made.run_once()
    assert report.healed == 1 and report.deleted == [] and station.deleted() == names(1)


def test_a_folder_in_which_no_file_of_many_rows_is_found_is_taken_for_a_wrong_one(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.create()
    monkeypatch.setattr(janitor_module, "_SUSPICIOUS", 3)
    for number in range(1, 4):
        (station.folder / station.add(number)).unlink()
    (station.folder / "something else").touch()
    with pytest.raises(ConfigurationError, match="is it the right folder"):
        declared(station).run_once()
    assert station.deleted() == []
    station.add(4, time=time.time())
    assert declared(station).run_once().healed == 3


def test_a_folder_that_was_a_disk_of_its_own_and_is_none_now_is_refused(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.create()
    made = declared(station)
    with monkeypatch.context() as patched:
        patched.setattr(os.path, "ismount", lambda path: True)
        made.run_once()
    station.add(1)
    with pytest.raises(ConfigurationError, match="was a disk of its own"):
        made.run_once()
    assert station.files() == names(1)
    station.folder = station.folder.parent / "another"
    station.folder.mkdir()
    station.add(2)
    assert declared(station).run_once().name == "housekeeping" and station.files() == []


def test_an_error_of_a_service_names_it_once(caplog: pytest.LogCaptureFixture) -> None:
    ErrorBackoff("janitor 'old'").failed(ConfigurationError("janitor 'old': its disk is gone"))
    assert caplog.messages == ["janitor 'old': its disk is gone; it is tried again"]


def test_companions_go_with_the_row_and_the_user_is_told_in_the_confirming_transaction(
    station: Station,
) -> None:
    station.create()
    station.execute(f"CREATE TABLE {station.prefix}clips (recording BIGINT, path TEXT)")
    mark = "?" if station.is_sqlite else "%s"
    clips = station.folder.parent / "clips"
    clips.mkdir()
    station.add(1)
    station.add(2, time=time.time())
    ((first, _), (second, _)) = station.rows("id", "file_raw")
    for key, name in ((first, "a"), (first, "b"), (first, "../recorder/00002.wav"), (second, "c")):
        station.execute(f"INSERT INTO {station.prefix}clips VALUES (?, ?)", (key, name))
        if "/" not in name:
            (clips / name).write_bytes(b"x" * SIZE)
    (clips / "d").symlink_to(clips / "c")
    station.execute(f"INSERT INTO {station.prefix}clips VALUES (?, 'd')", (first,))
    told: list[Any] = []

    def also(row: Any, tx: Any) -> list[str]:
        asked = f"SELECT path FROM {station.prefix}clips WHERE recording = {mark}"
        return [path for (path,) in tx.execute(asked, (row.id,)).fetchall()]

    def on_deleted(row: Any, paths: list[Path], tx: Any) -> None:
        told.append((row.file_raw, sorted(path.name for path in paths)))
        tx.execute(f"DELETE FROM {station.prefix}clips WHERE recording = {mark}", (row.id,))

    report = declared(station, also=also, also_folder=clips, on_deleted=on_deleted).run_once()
    assert told == [("00001.wav", ["00001.wav", "a", "b"])]
    assert sorted(path.name for path in clips.iterdir()) == ["c", "d"]
    assert {one.path: one.why for one in report.refused} == {
        "../recorder/00002.wav": "its path is not one below the folder",
        "d": "it is a link",
    }
    assert station.deleted() == names(1) and station.files() == names(2)
    assert station.execute(f"SELECT count(*) FROM {station.prefix}clips") == [(1,)]


def test_a_companion_that_is_none_is_no_file_of_that_name(station: Station) -> None:
    station.create()
    station.add(1)
    station.write("None")
    report = declared(station, also=lambda row: [row.station]).run_once()
    assert len(report.deleted) == 1 and report.refused == []
    assert station.files() == ["None"]


def test_a_function_that_raises_when_told_is_told_again_by_the_next_run(station: Station) -> None:
    station.create()
    station.add(1)
    station.add(2)
    calls: list[str] = []

    def on_deleted(row: Any, paths: list[Path]) -> None:
        calls.append(row.file_raw)
        if calls.count("00001.wav") == 1 and row.file_raw == "00001.wav":
            raise RuntimeError("not now")

    made = declared(station, on_deleted=on_deleted)
    report = made.run_once()
    assert "not confirmed" in report.refused[0].why and station.deleted() == names(2)
    assert made.run_once().healed == 1
    assert station.deleted() == names(1, 2) and calls == ["00001.wav", "00002.wav", "00001.wav"]
    assert station.marks() == []


def test_a_row_that_the_table_refuses_to_mark_spares_the_others(station: Station) -> None:
    station.create()
    for number in range(1, 4):
        station.add(number, station="locked" if number == 2 else "free")
    if station.is_sqlite:
        station.execute(
            "CREATE TRIGGER locked BEFORE UPDATE ON recordings WHEN old.station = 'locked' "
            "BEGIN SELECT RAISE(ABORT, 'this row is sealed'); END"
        )
    else:
        station.execute(f"ALTER TABLE {station.table} ADD CHECK (station <> 'locked' OR NOT local_deleted)")
    report = declared(station).run_once()
    assert station.deleted() == names(1, 3) and station.files() == []
    assert "not confirmed" in report.refused[0].why and len(station.marks()) == 1


def sealed(station: Station) -> None:
    """A table that takes no mark."""
    if station.is_sqlite:
        station.execute(
            "CREATE TRIGGER sealed BEFORE UPDATE ON recordings WHEN new.local_deleted "
            "BEGIN SELECT RAISE(ABORT, 'sealed'); END"
        )
    else:
        station.execute(f"ALTER TABLE {station.table} ADD CHECK (NOT local_deleted)")


def _refuse(row: Any, paths: list[Path]) -> None:
    raise RuntimeError("not now")


@pytest.mark.parametrize("refusing", ["function", "table"])
@pytest.mark.parametrize(
    ("limit", "left"),
    [({"max_size": 5 * SIZE}, names(2, 3, 4, 5, 6)), ({"max_age": "1h", "cap": 2}, names(3, 4, 5, 6))],
)
def test_files_count_towards_every_limit_also_if_their_deletion_is_not_confirmed(
    station: Station, refusing: str, limit: dict[str, Any], left: list[str]
) -> None:
    station.create()
    for number in range(1, 7):
        station.add(number)
    if refusing == "table":
        sealed(station)
    report = declared(station, on_deleted=_refuse if refusing == "function" else None, **limit).run_once()
    assert station.files() == left and station.deleted() == []
    assert [row.paths[0] for row in report.unconfirmed] == names(*range(1, 7 - len(left)))
    assert report.deleted == [] and report.freed >= SIZE * len(report.unconfirmed)


def test_a_run_stops_loudly_after_the_batch_in_which_a_deletion_was_not_confirmed(
    station: Station, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(janitor_run, "_BATCH", 2)
    station.create()
    for number in range(1, 6):
        station.add(number)
    made = declared(station, on_deleted=_refuse, max_size=SIZE)
    report = made.run_once()
    assert station.files() == names(3, 4, 5)
    assert report.short is not None and "the files of 2 rows are gone" in report.short
    assert "ERROR" in caplog.text and "RuntimeError: not now" in caplog.text
    assert "are gone" in str(made.record().error)


def test_a_row_of_which_only_one_file_can_go_stops_the_run(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = OpenFolder.remove

    def half(self: OpenFolder, found: Any) -> None:
        if found.path.startswith("p/"):
            raise FileRefused("permission denied")
        remove(self, found)

    monkeypatch.setattr(OpenFolder, "remove", half)
    station.create()
    for number in range(1, 4):
        station.add(number, processed=True)
    report = declared(station, max_size=SIZE).run_once()
    assert station.files() == [*names(2, 3), *(f"p/{name}" for name in names(1, 2, 3))]
    assert [row.paths for row in report.unconfirmed] == [names(1)] and report.freed >= SIZE
    assert station.deleted() == [] and station.marks() == []


# -- safety ----------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../outside/precious.wav", "not one below the folder"),
        ("a/../../outside/precious.wav", "not one below the folder"),
        ("{outside}/precious.wav", "not one below the folder"),
        ("link.wav", "it is a link"),
        ("linked/precious.wav", "a part of its path is a link"),
        ("folder", "it is no regular file"),
        ("", "not one below the folder"),
    ],
)
def test_a_path_that_leads_elsewhere_is_reported_and_nothing_is_deleted(
    station: Station, path: str, why: str
) -> None:
    station.create()
    outside = station.folder.parent / "outside"
    outside.mkdir()
    (outside / "precious.wav").write_bytes(b"RIFF")
    (station.folder / "link.wav").symlink_to(outside / "precious.wav")
    (station.folder / "linked").symlink_to(outside)
    (station.folder / "folder").mkdir()
    station.add(1, file_processed=path.format(outside=outside))
    station.add(2)
    report = declared(station).run_once()
    assert why in report.refused[0].why
    assert station.deleted() == names(2) and "00001.wav" in station.files()
    assert (outside / "precious.wav").exists() and station.marks() == []


def test_an_absolute_path_outside_is_refused_and_one_inside_is_not(station: Station) -> None:
    station.create()
    outside = station.folder.parent / "recorder2.wav"
    outside.write_bytes(b"RIFF")
    station.add(1, file_raw=str(station.folder / "00001.wav"))
    station.add(2, file_raw=str(outside))
    report = declared(station, paths="absolute").run_once()
    assert [row.paths for row in report.deleted] == [["00001.wav"]]
    assert report.refused[0].path == str(outside) and outside.exists()


def test_a_relative_path_is_never_resolved_against_the_working_directory(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.create()
    station.add(1)
    monkeypatch.chdir(station.folder)
    report = declared(station, paths="absolute").run_once()
    assert report.deleted == [] and "not inside" in report.refused[0].why


def test_a_file_that_changed_since_it_was_ingested_is_reported_and_kept(station: Station) -> None:
    station.create()
    app = station.app()
    station.write("a.wav", age=200)
    station.write("b.wav", age=200)
    ingest = app.ingest(
        "microphones",
        table=station.table,
        folder=station.folder,
        path=BOTH,
        paths="relative",
        row=lambda path: {"time": LONG_AGO},
    )
    assert len(ingest.run_once().ingested) == 2
    station.write("a.wav", b"something else", age=100)
    report = declared(station, app=app).run_once()
    assert [(one.path, one.why) for one in report.refused] == [
        ("a.wav", "it has changed since it was ingested")
    ]
    assert station.files() == ["a.wav"] and station.records() == {"a.wav": "ingested"}
    for url, table in spellings(station):
        with closing(Rowlock(url)) as other:
            assert len(declared(station, app=other, table=table).run_once().refused) == 1


def test_a_new_file_in_the_place_of_an_ingested_one_is_kept(station: Station) -> None:
    station.create()
    station.write("a.wav", age=200)
    common = {"table": station.table, "folder": station.folder, "path": BOTH, "paths": "relative"}
    station.app().ingest("microphones", row=lambda path: {"time": LONG_AGO}, **common).run_once()
    (station.folder / "a.wav").unlink()
    later = station.app().ingest("microphones", **common)
    later.run_once()  # a process that begins by forgetting what is gone
    station.write("a.wav", b"another recording")
    assert later.run_once().known == 1
    report = declared(station).run_once()
    assert station.files() == ["a.wav"] and "changed since it was ingested" in report.refused[0].why


def test_a_file_that_another_row_needs_is_kept(station: Station) -> None:
    station.create()
    station.add(1)
    station.add(2, time=time.time(), file_processed="00001.wav")
    report = declared(station).run_once()
    assert station.files() == names(1, 2) and "another row" in report.refused[0].why
    station.execute(f"UPDATE {station.table} SET time = ?", (LONG_AGO,))
    assert len(declared(station).run_once().deleted) == 2


def test_a_file_of_a_row_that_a_consumer_takes_meanwhile_is_kept_for_it(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rowlock.files import deleting

    station.create()
    station.add(1)
    station.add(2, file_processed="00001.wav")
    held = station.column("id")[1]

    def taken(name: str) -> None:
        if name == "marked":
            claims = f"{station.prefix}rowlock_consumer_claims (consumer, row_key, claimed_by)"
            key = held if station.is_sqlite else str(held)
            station.execute(f"INSERT INTO {claims} VALUES ('birdnet', ?, 'somebody')", (key,))

    monkeypatch.setattr(deleting, "step", taken)
    report = declared(station).run_once()
    assert station.files() == names(1, 2) and "another row" in report.refused[0].why


def test_a_dry_run_leaves_even_a_broken_off_deletion_as_it_is(station: Station) -> None:
    station.create()
    station.add(1)
    (station.folder / "00001.wav").rename(station.folder / ".00001.wav.rowlock-delete")
    declared(station).run_once(dry_run=True)
    assert station.files() == [".00001.wav.rowlock-delete"]
    declared(station).run_once()
    assert station.files() == [] and station.deleted() == names(1)


def test_a_deletion_that_was_broken_off_waits_while_a_consumer_has_the_row(station: Station) -> None:
    station.create()
    station.add(1)
    made = declared(station)
    made.run_once(now=1.0)
    (key,) = station.column("id")
    marks = f"{station.prefix}rowlock_file_marks (janitor, row_key, companion, path, reason)"
    text = key if station.is_sqlite else str(key)
    station.execute(f"INSERT INTO {marks} VALUES ('housekeeping', ?, 0, '00001.wav', 'old')", (text,))
    claims = f"{station.prefix}rowlock_consumer_claims (consumer, row_key, claimed_by)"
    station.execute(f"INSERT INTO {claims} VALUES ('birdnet', ?, 'somebody')", (text,))
    (station.folder / "00001.wav").unlink()
    made.run_once(now=1.0)
    assert station.deleted() == [] and len(station.marks()) == 1
    station.execute(f"DELETE FROM {station.prefix}rowlock_consumer_claims")
    made.run_once(now=1.0)
    assert station.deleted() == names(1) and station.marks() == []


def test_what_a_renamed_janitor_left_behind_is_seen_to_by_another(station: Station) -> None:
    station.create()
    app = station.app()
    made = declared(station, "new", app, where="uploaded")
    declared(station, "other tier", app)
    made.check()
    station.add(1)  # protected
    (station.folder / station.add(2)).unlink()
    for number in (3, 4):
        station.add(number)
    (station.folder / "00001.wav").rename(station.folder / ".00001.wav.rowlock-delete")
    marks = f"{station.prefix}rowlock_file_marks (janitor, row_key, companion, path, reason)"
    one, two, three, four = (key if station.is_sqlite else str(key) for key in station.column("id"))
    for janitor, key, path in (
        ("old", one, "00001.wav"),
        ("old", two, "00002.wav"),
        ("old", three, "another folder's.wav"),
        ("old", "a key of another table", "00003.wav"),
        ("other tier", four, "00004.wav"),
    ):
        station.execute(f"INSERT INTO {marks} VALUES (?, ?, 0, ?, 'full')", (janitor, key, path))
    made.run_once()
    assert station.files() == names(1, 3, 4) and station.deleted() == names(2)
    assert sorted((janitor, path) for janitor, _, path in station.marks()) == [
        ("old", "00003.wav"),
        ("old", "another folder's.wav"),
        ("other tier", "00004.wav"),
    ]


def test_rows_that_are_refused_do_not_use_up_the_cap(station: Station) -> None:
    station.create()
    for number in range(1, 6):
        station.add(number, file_processed=f"../{number}" if number < 4 else None)
    report = declared(station, cap=1).run_once()
    assert station.deleted() == names(4) and len(report.refused) == 3


def test_a_row_that_ceases_to_be_deletable_meanwhile_is_kept(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rowlock.files import deleting

    station.create()
    station.add(1, uploaded=True)

    def somebody_else(name: str) -> None:
        if name == "marked":
            station.execute(f"UPDATE {station.table} SET uploaded = false")

    monkeypatch.setattr(deleting, "step", somebody_else)
    report = declared(station, where="uploaded").run_once()
    assert report.deleted == [] and station.files() == names(1) and station.marks() == []


def test_without_its_database_nothing_is_deleted(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.create()
    station.add(1)
    app = station.app()
    made = declared(station, app=app)
    made.check()
    broken = type(app.store.database)

    def gone(self: Any, *given: Any, **named: Any) -> Any:
        raise StoreError("no database")

    for verb in ("read", "write", "transaction"):
        monkeypatch.setattr(broken, verb, gone)
    with pytest.raises(StoreError):
        made.run_once()
    assert station.files() == names(1)


def test_the_queues_own_database_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "recorder").mkdir()
    station = Station(f"sqlite:///{tmp_path / 'recorder' / 'queue.db'}", tmp_path / "other")
    station.folder = tmp_path / "recorder"
    station.create()
    station.execute(f"INSERT INTO {station.table} (time, file_raw) VALUES (?, 'queue.db')", (LONG_AGO,))
    report = declared(station).run_once()
    assert "queue's own" in report.refused[0].why and (station.folder / "queue.db").exists()
    station.close()


# -- dry run, service, numbers ---------------------------------------------------------------------


def test_a_dry_run_says_what_and_why_and_changes_nothing(
    station: Station, full_disk: Callable[..., None]
) -> None:
    station.create()
    app = station.app()
    for number in range(1, 6):
        station.add(number)
    full_disk(10)
    first = declared(station, app=app, min_free="60%")
    second = declared(station, "panic", app, min_free="55%")
    one = first.run_once(dry_run=True)
    assert [row.paths for row in one.deleted] == [names(1)] and one.dry_run
    assert second.run_once(dry_run=True, earlier=[one]).deleted == []  # by then it would be enough
    assert len(second.run_once(dry_run=True).deleted) == 1
    assert len(station.files()) == 5 and station.deleted() == [] and station.marks() == []
    assert first.record().last_run is None


def test_numbers_are_kept(station: Station) -> None:
    station.create()
    station.add(1)
    station.add(2, file_processed="../x")
    made = declared(station)
    made.run_once()
    record = made.record()
    assert (record.done, record.refused) == (1, 1) and record.bytes >= SIZE and record.last_run is not None


def test_a_service_cleans_up_again_and_again_until_it_is_stopped(station: Station) -> None:
    station.create()
    made = declared(station, interval=0.02)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        for number in range(1, 4):
            station.add(number)
            eventually(lambda number=number: len(station.deleted()) == number)
    finally:
        made.stop()
        thread.join(timeout=30)
    assert not thread.is_alive()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"table": "nowhere"}, "there is no table nowhere"),
        ({"deleted": "no_column"}, "deleted='no_column', but"),
        ({"order_by": "no_column"}, "order_by='no_column', but"),
        ({"path": "no_column"}, "path='no_column', but"),
        ({"folder": "nowhere"}, "does not exist"),
        ({"where": "uploaded ="}, "conditions do not work"),
        ({"where": "no_column = 1"}, r"on \S+ \(where='no_column = 1'\): (no such )?column"),
        ({"where": "uploaded) OR (1 = 1"}, "conditions do not work"),
        ({"where": "uploaded) /*"}, "conditions do not work"),
        ({"after": ["birdnet"]}, "there is no consumer 'birdnet'"),
        ({"after": ["other"]}, "is a consumer of .*elsewhere and not of"),
        ({"key": "station"}, "key='station' is not unique"),
        ({"order_by": "id"}, "must be a time"),
    ],
)
def test_what_does_not_fit_is_said_at_the_start(station: Station, wrong: dict[str, Any], told: str) -> None:
    station.create()
    station.add(1)
    app = station.app()
    birdnet(station, app, "other", table=f"{station.prefix}elsewhere")
    with pytest.raises(ConfigurationError, match=told):
        declared(station, app=app, **wrong).check()
    assert station.files() == names(1)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "give it a limit"),
        ({"min_free": "20 percent"}, "min_free="),
        ({"max_size": "20%"}, "max_size="),
        ({"max_age": "20%", "order_by": "time"}, "max_age="),
        ({"max_age": "30d"}, "order_by"),
        ({"target_free": "30%"}, "target_free is where min_free ends"),
        ({"min_free": "30%", "target_free": "20%"}, "below min_free"),
        ({"min_free": "30%", "cap": 0}, "cap=0"),
        ({"min_free": "30%", "after": "birdnet"}, "must be a list of consumers' names"),
        ({"min_free": "30%", "deleted": "gone", "remove_rows": True}, "not both"),
        ({"min_free": "30%", "typo": 1}, "app.janitor: unknown option 'typo'; there are: after, "),
        ({"min_free": "30%", "where": " "}, "where="),
        ({"min_free": "30%", "order_by": "time DESC"}, "leave DESC out"),
        ({"min_free": "30%", "also": 5}, "also=5"),
        ({"min_free": "30%", "also_folder": "clips"}, "also_folder"),
        ({"min_free": "30%", "on_deleted": print, "interval": 0}, "interval=0"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_declared(
    app: Rowlock, wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        app.janitor("housekeeping", **{"table": "recordings", "folder": "recorder", **wrong})
