"""Rows of which the database refuses something: each ends by itself, and the others are done all the same."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rowlock import Fail, JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from rowlock.insights import doctor
from rowlock.job import Claim, ClaimRequest, Ending, Outcome, Progress, Report
from tests.consumers.lab import Lab, store_of
from tests.stores.steps import refuse_updates
from tests.stores.steps import worker as register

START = time.time()
LATER = START + 1000.0
WORDS = Status("status", error="error")
LONG = "a reason of a hundred and fifty characters " + "é" * 107
NEVER = "this row stays as it is"


class Desk:
    """A table with a status column, of which some columns are choosy."""

    def __init__(self, lab: Lab, app: Rowlock, *columns: str, status: Status = WORDS, **chosen: Any) -> None:
        self.lab = lab
        self.table = f"{lab.prefix}jobs"
        self.app = app
        declared = ", ".join(columns or ("error TEXT",))
        lab.execute(f"CREATE TABLE {self.table} (id INTEGER PRIMARY KEY, status TEXT, {declared})")
        self._chosen: dict[str, Any] = {"table": self.table, "status": status, "retry": False, **chosen}

    def add(self, *keys: int, **values: Any) -> None:
        names, given = ["id", "status", *values], ", ".join("?" for _ in range(2 + len(values)))
        for key in keys:
            self.lab.execute(
                f"INSERT INTO {self.table} ({', '.join(names)}) VALUES ({given})",
                (key, "pending", *values.values()),
            )

    def declare(self, function: Any) -> None:
        self.app.consumer("desk", **self._chosen)(function)

    def consume(self, function: Any) -> Any:
        self.declare(function)
        return self.consume_again()

    def consume_again(self) -> Any:
        return self.app.consume("desk", until_empty=True, concurrency=1)

    def rows(self, columns: str = "status, error") -> dict[int, tuple[Any, ...]]:
        found = self.lab.execute(f"SELECT id, {columns} FROM {self.table} ORDER BY id")
        return {row[0]: tuple(row[1:]) for row in found}

    def refuse(self, condition: str) -> None:
        refuse_updates(self.lab.execute, self.lab.prefix, "jobs", condition, NEVER)

    def lift(self) -> None:
        self.lab.execute(f"DROP TRIGGER refuse_jobs{'' if self.lab.is_sqlite else f' ON {self.table}'}")


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    return lab.app()


def nothing(row: Row) -> None:
    """A consumer's function that does nothing."""


def fails(row: Row) -> None:
    raise Fail(LONG)


def fails_at_two(row: Row) -> None:
    if row.id == 2:
        raise Fail("no picture")


# -- an error column with a length, or one that may not be null ------------------------------------


@pytest.mark.parametrize("kind", ["varchar(100)", "character varying(100)", "CHAR(100)"])
def test_an_error_is_cut_to_the_length_of_its_column(lab: Lab, app: Rowlock, kind: str) -> None:
    desk = Desk(lab, app, f"error {kind}")
    desk.add(1, 2)
    assert desk.consume(fails).failed == 2
    assert desk.rows() == dict.fromkeys((1, 2), ("failed", LONG[:100]))


def test_a_domain_over_a_length_or_not_null_counts_like_the_column_itself(lab: Lab, app: Rowlock) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite has no domains")
    lab.execute(f"CREATE DOMAIN {lab.prefix}reason AS varchar(20) NOT NULL DEFAULT ''")
    desk = Desk(lab, app, f"error {lab.prefix}reason")
    desk.add(1, 2)
    desk.consume(fails_at_two)
    assert desk.rows() == {1: ("completed", ""), 2: ("failed", "no picture")}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_an_error_column_that_may_not_be_null_is_emptied(
    lab: Lab, app: Rowlock, *, in_transaction: bool
) -> None:
    desk = Desk(lab, app, "error TEXT NOT NULL DEFAULT 'none yet'")
    desk.add(1, 2, 3)

    def work(ctx: JobContext, row: Row) -> None:
        fails_at_two(row)
        if in_transaction:
            with ctx.transaction() as tx:
                tx.execute("SELECT 1")

    desk.consume(work)
    assert desk.rows() == {1: ("completed", ""), 2: ("failed", "no picture"), 3: ("completed", "")}


def test_rows_that_failed_can_be_retried_though_their_error_may_not_be_null(lab: Lab, app: Rowlock) -> None:
    from rowlock.consumers.overview import retry_failed

    desk = Desk(lab, app, "error TEXT NOT NULL DEFAULT ''")
    desk.add(1)
    desk.consume(fails)
    assert retry_failed(app.consumer_source("desk")) == 1
    assert desk.rows() == {1: ("pending", "")}


# -- one row whose outcome is refused ---------------------------------------------------------------


def test_a_check_that_refuses_one_success_fails_that_row_and_no_other(lab: Lab, app: Rowlock) -> None:
    desk = Desk(lab, app, "error TEXT", "CONSTRAINT not_two CHECK (id <> 2 OR status <> 'completed')")
    desk.add(1, 2, 3)
    tally = desk.consume(nothing)
    assert (tally.completed, tally.failed) == (2, 1)
    rows = desk.rows()
    assert (rows[1], rows[3]) == (("completed", None), ("completed", None))
    assert rows[2][0] == "failed" and "not_two" in rows[2][1]
    assert lab.claims() == []


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_trigger_that_refuses_one_success_fails_that_row_and_no_other(
    lab: Lab, app: Rowlock, *, in_transaction: bool
) -> None:
    desk = Desk(lab, app)
    desk.add(1, 2, 3)
    desk.refuse("OLD.id = 2 AND NEW.status = 'completed'")

    def work(ctx: JobContext, row: Row) -> None:
        if in_transaction:
            with ctx.transaction() as tx:
                tx.execute("SELECT 1")

    tally = desk.consume(work)
    assert (tally.completed, tally.failed) == (2, 1)
    rows = desk.rows()
    assert (rows[1], rows[3]) == (("completed", None), ("completed", None))
    assert rows[2][0] == "failed" and NEVER in rows[2][1]


@pytest.mark.parametrize("when", ["IMMEDIATE", "DEFERRED"])
def test_a_foreign_key_that_refuses_one_success_fails_that_row_and_no_other(
    lab: Lab, app: Rowlock, when: str
) -> None:
    if lab.is_sqlite:
        pytest.skip("SQLite checks foreign keys only on connections that ask for it")
    lab.execute(f"CREATE TABLE {lab.prefix}allowed (id integer, status text, PRIMARY KEY (id, status))")
    words = ["pending", "running", "completed", "failed"]
    for key, word in [(key, word) for key in (1, 2, 3) for word in words if (key, word) != (2, "completed")]:
        lab.execute(f"INSERT INTO {lab.prefix}allowed VALUES (?, ?)", (key, word))
    refers = (
        f"CONSTRAINT may FOREIGN KEY (id, status) REFERENCES {lab.prefix}allowed DEFERRABLE INITIALLY {when}"
    )
    desk = Desk(lab, app, "error TEXT", refers)
    desk.add(1, 2, 3)
    desk.consume(nothing)
    rows = desk.rows()
    assert (rows[1], rows[3]) == (("completed", None), ("completed", None))
    assert rows[2][0] == "failed" and '"may"' in rows[2][1] and "(2, completed)" in rows[2][1]


def test_a_failure_that_is_refused_fails_with_what_the_database_said(
    lab: Lab, app: Rowlock, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(lab, app)
    desk.add(1, 2, 3)
    desk.refuse("NEW.error = 'no picture'")
    desk.consume(fails_at_two)
    assert desk.rows() == {
        1: ("completed", None),
        2: ("failed", f"refused by the database: {NEVER}"),
        3: ("completed", None),
    }
    (told,) = [line for line in caplog.messages if "refused its outcome" in line]
    assert told.startswith("consumer desk, row 2: ") and told.endswith("(its own error: no picture)")


def test_one_row_of_a_batch_is_refused_and_the_others_have_their_answers(lab: Lab) -> None:
    lab.create(4)
    app = lab.app()
    success = "length(CAST(NEW.analysis_state AS text)) < 30"
    refuse_updates(lab.execute, lab.prefix, "recordings", f"OLD.id = 2 AND {success}", NEVER)

    @app.consumer("levels", table=lab.table, state="analysis_state", batch=4)
    def levels(recordings: list[Row]) -> list[Any]:
        return [ValueError("no file") if one.id == 3 else [one.id] for one in recordings]

    store = store_of(app, "levels")
    who = register(app.store)
    (claim,) = store.exchange(who, request=ClaimRequest(count=1)).claims
    answers = '[["ok",[1]],["ok",[2]],["error","no file","fail",{"never":false}],["ok",[4]]]'
    got = store.exchange(who, [claim.ended(Ending.COMPLETED, result=answers)])
    assert (got.lost, got.refused, got.unwritable) == ([], [], [])
    marks = lab.marks("levels")
    assert (marks[1], marks[4]) == ([1], [4])
    assert marks[3] == {"failed": "no file", "attempts": 1}
    assert marks[2] == {"failed": f"refused by the database: {NEVER}", "attempts": 1}
    assert lab.claims() == []


def test_progress_that_is_refused_is_dropped_and_no_other(lab: Lab, app: Rowlock) -> None:
    desk = Desk(lab, app, "progress INTEGER", status=Status("status", progress="progress"))
    desk.add(1, 2, 3)
    desk.refuse("NEW.progress = 50 AND OLD.id = 2")
    desk.declare(nothing)
    store, who = store_of(app, "desk"), register(app.store)
    claims = store.exchange(who, request=ClaimRequest(count=3)).claims
    reports = [Report(id=one.id, claim=one.claim, progress=Progress(1.0, 2.0, "")) for one in claims]
    store.report(reports)
    assert desk.rows("progress") == {1: (50,), 2: (0,), 3: (50,)}
    assert store.exchange(who, completed(claims), reports=reports).refused == []
    assert desk.rows("status, progress") == dict.fromkeys((1, 2, 3), ("completed", 100))


# -- rows of which nothing at all can be written ----------------------------------------------------


def test_a_row_that_refuses_every_change_is_known_and_holds_up_nobody(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.create(5)
    app = lab.app()
    refuse_updates(lab.execute, lab.prefix, "recordings", "OLD.id = 2", NEVER)
    ran: list[int] = []

    @app.consumer("birdnet", table=lab.table, state="analysis_state", retry=Retry(max_attempts=2, base=0.0))
    def birdnet(recording: Row) -> None:
        ran.append(recording.id)

    for times in (1, 2, 2, 2):  # once in each worker, until its attempts are used up
        app.consume("birdnet", until_empty=True)
        assert ran.count(2) == times
    assert lab.marks("birdnet") == {1: True, 2: None, 3: True, 4: True, 5: True}
    assert told(caplog) == ["consumer birdnet, row 2"] * 2
    (finding,) = [one for one in doctor(app.store) if one.check == "refused writes"]
    assert "consumer birdnet, row 2, held by" in finding.message and NEVER in finding.message


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_row_that_cannot_even_be_taken_is_known_and_holds_up_nobody(
    lab: Lab, app: Rowlock, caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    desk = Desk(lab, app, retry=Retry(max_attempts=attempts))
    desk.add(*range(1, 8))
    desk.refuse("OLD.id = 2")
    desk.declare(nothing)
    store, who = store_of(app, "desk"), register(app.store)
    got = store.exchange(who, request=ClaimRequest(count=4))
    assert [claim.unique_key for claim in got.claims] == ["1", "3", "4"] and len(got.unwritable) == 1
    got = store.exchange(who, completed(got.claims), ClaimRequest(count=4))
    assert [claim.unique_key for claim in got.claims] == ["5", "6", "7"]
    store.exchange(who, completed(got.claims))
    assert store.idle([])
    assert told(caplog) == ["consumer desk, row 2"]
    assert [title for title, *_ in app.store.facts()["refused"]] == ["consumer desk, row 2"]
    store.retire(who)  # it was never begun: nothing is charged, and the next worker may take it
    assert lab.claims() == []
    assert desk.consume_again().completed == 0
    assert {key: status for key, (status, _) in desk.rows().items()} == {
        key: "pending" if key == 2 else "completed" for key in range(1, 8)
    }


def test_a_row_that_cannot_be_begun_stays_with_its_relay_and_no_other_is_begun(
    lab: Lab, app: Rowlock
) -> None:
    desk = Desk(lab, app)
    desk.add(1, 2)
    desk.declare(nothing)
    store = store_of(app, "desk")
    (sent,) = store.hand_over(register(app.store, "relay"), ClaimRequest(count=1)).claims
    desk.refuse("OLD.id = 1")
    assert store.start(register(app.store, "rq"), (sent.id, sent.claim)).claims == []
    assert store.held("rq") == [] and store.held("relay") == [(sent.id, sent.claim, False)]
    assert [status for status, _ in desk.rows().values()] == ["running", "pending"]


def test_what_one_worker_cannot_write_does_not_keep_another_from_ending(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()
    refuse_updates(lab.execute, lab.prefix, "recordings", "OLD.id = 1", NEVER)
    app.consumer("birdnet", table=lab.table, state="analysis_state")(nothing)
    store, who = store_of(app, "birdnet"), register(app.store)
    (claim,) = store.exchange(who, request=ClaimRequest(count=1)).claims
    assert store.exchange(who, completed([claim])).unwritable == [(claim.id, claim.claim)]
    assert app.consume("birdnet", until_empty=True).completed == 1


def test_a_rescue_takes_back_what_it_can_and_the_rest_when_it_is_let(
    lab: Lab, app: Rowlock, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(lab, app, retry=Retry(max_attempts=3))
    desk.add(1, 2, 3)
    desk.declare(nothing)
    store = store_of(app, "desk")
    store.exchange(register(app.store, "first", now=START), request=ClaimRequest(count=3), now=START)
    desk.refuse("OLD.id = 2")
    second = register(app.store, "second", now=LATER)
    done = store.rescue(second, careful_age=10.0, now=LATER)
    assert (done.workers, done.requeued, done.failed) == (["first"], 2, 0)
    assert [status for status, _ in desk.rows().values()] == ["pending", "running", "pending"]
    assert store.next_needed(second, now=LATER) is None
    assert store.rescue(second, careful_age=10.0, now=LATER).workers == []  # tried again, in silence
    assert told(caplog) == ["consumer desk, row 2"]
    desk.lift()
    assert store.rescue(second, careful_age=10.0, now=LATER).requeued == 1
    assert [status for status, _ in desk.rows().values()] == ["pending"] * 3
    assert app.store.facts()["refused"] == []


def test_a_worker_that_ends_gives_back_what_can_be_given_back(lab: Lab, app: Rowlock) -> None:
    desk = Desk(lab, app, retry=Retry(max_attempts=3))
    desk.add(1, 2, 3)
    desk.declare(nothing)
    store, who = store_of(app, "desk"), register(app.store)
    store.exchange(who, request=ClaimRequest(count=3))
    desk.refuse("NEW.status = 'pending' AND OLD.id = 2")
    store.retire(who)
    assert desk.rows() == {
        1: ("pending", None),
        2: ("failed", f"refused by the database: {NEVER}"),
        3: ("pending", None),
    }


def test_old_rows_that_refuse_to_be_failed_hold_up_nobody(
    lab: Lab, app: Rowlock, caplog: pytest.LogCaptureFixture
) -> None:
    status = Status("status", error="error", created_at="created", deadline=60.0)
    desk = Desk(lab, app, "error TEXT", "created REAL", status=status)
    desk.add(1, created=1.0)
    desk.refuse("OLD.id = 1 AND NEW.status = 'failed'")
    desk.declare(nothing)
    store = store_of(app, "desk")
    assert [store.expire(10, now=LATER) for _ in range(2)] == [0, 0]
    assert len([line for line in caplog.messages if "too old" in line]) == 1


def completed(claims: list[Claim]) -> list[Outcome]:
    return [claim.ended(Ending.COMPLETED) for claim in claims]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The rows of which was logged that nothing can be written about them."""
    return [line.partition(":")[0] for line in caplog.messages if "stays claimed" in line]
