"""Consumers that keep their state in a JSON column of the user's table."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from rowlock import Fail, JobContext, Outcome, Retry, RetryLater, Rowlock, resident
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.row import Row
from rowlock.job import ClaimRequest
from tests.consumers.lab import Lab, store_of
from tests.eventually import eventually, least
from tests.stores.steps import worker as register

Maker = Callable[[Callable[..., Any]], Consumer]
NOW = Retry(max_attempts=3, base=0.0)


def consumer(app: Rowlock, lab: Lab, name: str = "birdnet", **chosen: Any) -> Maker:
    return app.consumer(name, table=lab.table, state="analysis_state", order_by="time", **chosen)


def test_every_row_is_worked_on_once_and_marked(lab: Lab) -> None:
    lab.create(20)
    app, seen = lab.app(), []

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        seen.append((recording.id, recording.path, recording["time"]))

    tally = app.consume("birdnet", until_empty=True, concurrency=1)
    assert tally.completed == 20
    assert seen == [(n, f"rec-{n}", float(n)) for n in range(1, 21)]
    assert lab.marks("birdnet") == dict.fromkeys(range(1, 21), True)
    assert lab.claims() == []
    assert app.consume("birdnet", until_empty=True).completed == 0


def test_rows_come_in_the_chosen_order(lab: Lab) -> None:
    lab.create(5)
    app, seen = lab.app(), []

    @app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time DESC")
    def birdnet(recording: Row) -> None:
        seen.append(recording.id)

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [5, 4, 3, 2, 1]


def test_only_the_chosen_columns_and_rows_are_handed_over(lab: Lab) -> None:
    lab.create(3)
    lab.execute(f"UPDATE {lab.table} SET path = NULL WHERE id = 2")
    app, seen = lab.app(), []

    @consumer(
        app, lab, columns=["id", "path"], where="path IS NOT NULL -- finished ones\nAND path LIKE 'rec-%'"
    )
    def birdnet(recording: Row) -> None:
        seen.append(dict(recording))

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [{"id": 1, "path": "rec-1"}, {"id": 3, "path": "rec-3"}]
    assert lab.marks("birdnet") == {1: True, 2: None, 3: True}


def test_two_consumers_of_one_table_do_not_touch_each_other(lab: Lab) -> None:
    lab.create(5)
    lab.set_state(1, '{"batdetect": true, "reviewer": "Ada"}')
    app = lab.app()

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        pass

    @consumer(app, lab, "batdetect")
    def batdetect(recording: Row) -> None:
        pass

    assert app.consume("birdnet", until_empty=True).completed == 5
    assert lab.states()[1] == {"batdetect": True, "reviewer": "Ada", "birdnet": True}
    assert app.consume("batdetect", until_empty=True).completed == 4
    assert all(
        state == {"birdnet": True, "batdetect": True} for key, state in lab.states().items() if key > 1
    )


def test_a_null_member_is_due_and_a_returned_value_is_kept(lab: Lab) -> None:
    lab.create(4)
    for key, state in ((1, '{"birdnet": null}'), (2, "{}"), (3, "null"), (4, '{"birdnet": false}')):
        lab.set_state(key, state)
    app = lab.app()

    @consumer(app, lab)
    def birdnet(recording: Row) -> dict[str, Any]:
        return {"species": ["Turdus merula"], "n": recording.id}

    assert app.consume("birdnet", until_empty=True).completed == 3
    assert lab.marks("birdnet")[2] == {"species": ["Turdus merula"], "n": 2}
    assert lab.marks("birdnet")[3] == {"species": ["Turdus merula"], "n": 3}
    assert lab.marks("birdnet")[4] is False


def test_a_row_out_of_attempts_says_why_and_how_often(lab: Lab) -> None:
    lab.create(3)
    app, attempts = lab.app(), []

    @consumer(app, lab, retry=NOW)
    def birdnet(ctx: JobContext, recording: Row) -> None:
        if recording.id == 2:
            attempts.append(ctx.attempt)
            raise ValueError("no sound in it")

    app.consume("birdnet", until_empty=True)
    assert attempts == [1, 2, 3]
    assert lab.marks("birdnet") == {
        1: True,
        2: {"failed": "ValueError: no sound in it", "attempts": 3},
        3: True,
    }
    assert lab.claims() == []


def test_a_retry_waits_without_blocking_the_rows_behind_it(lab: Lab) -> None:
    lab.create(5)
    app, seen = lab.app(), []

    @consumer(app, lab, retry=Retry(max_attempts=2, base=3600.0, jitter=False))
    def birdnet(recording: Row) -> None:
        seen.append(recording.id)
        if recording.id == 1:
            raise OSError("busy")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert seen == [1, 2, 3, 4, 5]
    assert lab.marks("birdnet")[1] is None
    assert [(key, failures) for _, key, _, failures in lab.claims()] == [(lab_key(lab, 1), 1)]


def lab_key(lab: Lab, key: int) -> Any:
    return key if lab.is_sqlite else str(key)


def test_retry_later_and_fail_work_as_in_tasks(lab: Lab) -> None:
    lab.create(2)
    app, seen = lab.app(), []

    @consumer(app, lab)
    def birdnet(ctx: JobContext, recording: Row) -> None:
        seen.append((recording.id, ctx.attempt))
        if recording.id == 1:
            raise Fail("not a recording")
        if len([key for key, _ in seen if key == 2]) < 3:
            raise RetryLater(0.0)

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert [one for one in seen if one[0] == 2] == [(2, 1)] * 3
    assert lab.marks("birdnet") == {1: {"failed": "not a recording", "attempts": 1}, 2: True}


def test_rows_and_mark_commit_together_or_not_at_all(lab: Lab) -> None:
    lab.create(4)
    app = lab.app()

    @consumer(app, lab, retry=Retry(max_attempts=1))
    def birdnet(ctx: JobContext, recording: Row) -> int:
        with ctx.transaction() as tx:
            lab.detect(tx, recording.id, "birdnet")
            if recording.id == 3:
                raise ValueError("three")
        return 7

    app.consume("birdnet", until_empty=True)
    assert lab.detections() == [("1", "birdnet"), ("2", "birdnet"), ("4", "birdnet")]
    assert lab.marks("birdnet") == {1: 7, 2: 7, 3: {"failed": "ValueError: three", "attempts": 1}, 4: 7}
    assert lab.claims() == []


def test_what_is_enqueued_in_the_transaction_joins_it(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()

    @app.task
    def notify(recording: int) -> None:
        pass

    @consumer(app, lab, retry=Retry(max_attempts=1))
    def birdnet(ctx: JobContext, recording: Row) -> None:
        with ctx.transaction():
            notify.enqueue(recording.id)
        if recording.id == 2:
            raise ValueError("two")

    app.consume("birdnet", until_empty=True)
    assert [job.args for job in app.jobs()] == [{"recording": 1}]


@pytest.mark.parametrize("kind", ["uuid", "text"])
def test_keys_may_be_of_any_type(lab: Lab, kind: str) -> None:
    declared = "uuid PRIMARY KEY" if kind == "uuid" and not lab.is_sqlite else "TEXT PRIMARY KEY"
    lab.create(key=declared)
    keys = [str(uuid.uuid4()) if kind == "uuid" else f"it's {n}" for n in range(5)]
    for number, key in enumerate(keys):
        lab.execute(f"INSERT INTO {lab.table} (id, time) VALUES (?, ?)", (key, float(number)))
    app, seen = lab.app(), []

    @consumer(app, lab, retry=NOW)
    def birdnet(ctx: JobContext, recording: Row) -> None:
        seen.append(str(recording.id))
        if ctx.attempt == 1:
            raise OSError("once more")

    app.consume("birdnet", until_empty=True, concurrency=1)
    assert sorted(seen) == sorted(keys * 2)
    assert set(lab.marks("birdnet").values()) == {True}


def test_the_key_alone_may_give_the_order(lab: Lab) -> None:
    lab.create(7)
    app, seen = lab.app(), []

    @app.consumer("birdnet", table=lab.table, state="analysis_state")
    def birdnet(recording: Row) -> None:
        seen.append(recording.id)

    app.consume("birdnet", until_empty=True, concurrency=2)
    assert sorted(seen) == list(range(1, 8))


def test_values_keep_the_types_of_the_database(lab: Lab) -> None:
    if lab.is_sqlite:
        lab.execute("CREATE TABLE recordings (id INTEGER PRIMARY KEY, data BLOB, level REAL, s TEXT)")
        lab.execute("INSERT INTO recordings (data, level) VALUES (?, ?)", (b"\x00\xff", 0.5))
        expected: dict[str, Any] = {"data": b"\x00\xff", "level": 0.5}
    else:
        lab.execute(
            f"CREATE TABLE {lab.table} (id bigint PRIMARY KEY, at timestamptz, tags text[], more json, price "
            "numeric, uid uuid, data bytea, day date, s jsonb)"
        )
        lab.execute(
            f"INSERT INTO {lab.table} VALUES (1, '2026-05-01 12:00:00.123456+02', '{{a,b}}', '{{\"x\": 1}}', "
            "1.50, '6ab3f1a6-0000-4000-8000-000000000001', '\\x00ff', '2026-05-01', NULL)"
        )
        from decimal import Decimal

        expected = {
            "at": datetime(2026, 5, 1, 10, 0, 0, 123456, tzinfo=timezone.utc),
            "tags": ["a", "b"],
            "more": {"x": 1},
            "price": Decimal("1.50"),
            "uid": uuid.UUID("6ab3f1a6-0000-4000-8000-000000000001"),
            "data": b"\x00\xff",
            "day": datetime(2026, 5, 1).date(),  # noqa: DTZ001
        }
    app, seen = lab.app(), []

    @app.consumer("birdnet", table=lab.table, state="s")
    def birdnet(recording: Row) -> None:
        seen.append(dict(recording))

    app.consume("birdnet", until_empty=True)
    assert {name: seen[0][name] for name in expected} == expected


def test_residents_hooks_timeouts_and_coroutines_work_as_for_tasks(lab: Lab) -> None:
    lab.create(3)
    app, loads, around = lab.app(), [], []

    def load() -> str:
        loads.append(1)
        return "model"

    @app.around
    def hook(ctx: JobContext) -> Any:
        outcome: Outcome = yield
        around.append((ctx.task, str(outcome.ending)))

    @consumer(app, lab, timeout=3, retry=Retry(max_attempts=1))
    async def birdnet(ctx: JobContext, recording: Row, model: str = resident(load)) -> str:
        if recording.id == 2:
            await asyncio.sleep(600)
        return model

    app.consume("birdnet", until_empty=True)
    assert lab.marks("birdnet") == {
        1: "model",
        2: {"failed": "it ran longer than its timeout of 3 s", "attempts": 1},
        3: "model",
    }
    assert loads == [1]
    assert sorted(around) == [("birdnet", "completed"), ("birdnet", "completed"), ("birdnet", "failed")]


def test_a_paused_consumer_takes_nothing(lab: Lab) -> None:
    lab.create(2)
    app = lab.app()

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        pass

    app.pause("consumer:birdnet")
    assert app.consume("birdnet", until_empty=True).completed == 0
    app.resume("consumer:birdnet")
    assert app.consume("birdnet", until_empty=True).completed == 2


def test_rows_inserted_while_it_waits_are_found_and_a_wake_up_is_heard(lab: Lab) -> None:
    lab.create(1)
    app = lab.app()

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        pass

    with app.consuming("birdnet", poll_interval=600.0).background() as worker:
        eventually(lambda: lab.marks("birdnet")[1] is True)
        eventually(lambda: lab.sleeps(worker.id))
        lab.fill(2, 2)
        app.wake(lab.table)
        eventually(lambda: lab.marks("birdnet").get(2) is True)


def test_a_waiting_consumer_is_not_woken_by_jobs(lab: Lab) -> None:
    lab.create(0)
    app = lab.app()

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        pass

    with app.consuming("birdnet").background() as worker:
        eventually(app.store.workers)
        (record,) = app.store.workers()
        assert record.queues == ["consumer:birdnet", f"table:{lab.table}"]
        assert worker.id == record.id


# -- fences and rescue, verb by verb ---------------------------------------------------------------


def test_claim_numbers_never_come_again(lab: Lab) -> None:
    lab.create(1)
    app = lab.app()
    consumer(app, lab, retry=NOW)(lambda_consumer())
    store = store_of(app, "birdnet")
    worker = register(app.store, "w")
    seen = []
    for _ in range(3):
        (claim,) = store.exchange(worker, request=ClaimRequest(count=5)).claims
        seen.append(claim.claim)
        store.exchange(worker, [released(claim)])
    assert seen == sorted(set(seen))


def lambda_consumer() -> Any:
    def birdnet(recording: Row) -> None:
        pass

    return birdnet


def released(claim: Any) -> Outcome:
    from rowlock.job import Ending

    outcome: Outcome = claim.ended(Ending.RELEASED)
    return outcome


def completed(claim: Any) -> Outcome:
    from rowlock.job import Ending

    outcome: Outcome = claim.ended(Ending.COMPLETED, result="1")
    return outcome


def test_a_dead_workers_claim_is_taken_back_and_fenced(lab: Lab) -> None:
    lab.create(2)
    app = lab.app(lease=60.0)
    consumer(app, lab, retry=Retry(max_attempts=2))(lambda_consumer())
    store = store_of(app, "birdnet")
    import time

    start = time.time()
    first = register(app.store, "first", now=start)
    claims = store.exchange(first, request=ClaimRequest(count=1), now=start).claims
    later = start + 1000.0
    second = register(app.store, "second", now=later)
    rescue = store.rescue(second, careful_age=10.0, now=later)
    assert (rescue.workers, rescue.requeued, rescue.failed) == (["first"], 1, 0)
    # The old holder comes back too late, and changes nothing.
    assert store.exchange(first, [completed(claims[0])], now=later).lost != []
    assert lab.marks("birdnet") == {1: None, 2: None}
    # It comes back first, and alone; the first death costs nothing.
    (again,) = store.exchange(second, request=ClaimRequest(count=5), now=later).claims
    assert (again.unique_key, again.failures, again.claim > claims[0].claim) == ("1", 0, True)
    assert again.isolate > 0
    # A second death uses its budget up.
    last = later + 1000.0
    third = register(app.store, "third", now=last)
    assert store.rescue(third, careful_age=10.0, now=last).failed == 1
    mark = lab.marks("birdnet")[1]
    assert mark["attempts"] == 2
    assert "worker died" in mark["failed"]
    assert lab.claims() == []


def test_quick_rows_are_claimed_ahead_and_settled_together(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    app = lab.app()
    consumer(app, lab)(lambda_consumer())
    writing, transactions = app.store.database.write, list[Any]()

    def counted(now: float | None = None) -> Any:
        transactions.append(now)
        return writing(now)

    def count_a_thousand() -> int:
        lab.execute(f"UPDATE {lab.table} SET analysis_state = NULL")
        transactions.clear()
        assert app.consume("birdnet", until_empty=True).completed == 1_000
        assert set(lab.marks("birdnet").values()) == {True}
        return len(transactions)

    lab.create(1_000)
    monkeypatch.setattr(app.store.database, "write", counted)
    assert least(count_a_thousand, 200) <= 200  # more while the machine is busy with others


def test_one_quick_row_does_not_make_slow_transactional_rows_quick(lab: Lab) -> None:
    """Those are written by their own transactions, and teach how long they take all the same."""
    lab.create(40)
    app = lab.app()

    @app.consumer("birdnet", table=lab.table, state="analysis_state", order_by="time")
    def birdnet(ctx: JobContext, recording: Row) -> None:
        if recording.id > 1:
            threading.Event().wait(0.05)
            with ctx.transaction():
                pass

    tally = app.consume("birdnet", until_empty=True, concurrency=4)
    assert tally.completed == 40 and tally.released <= 5


def test_a_worker_buried_by_somebody_else_is_rescued_all_the_same(lab: Lab) -> None:
    import time

    lab.create(1)
    app = lab.app()
    consumer(app, lab)(lambda_consumer())
    store = store_of(app, "birdnet")
    start = time.time()
    first = register(app.store, "first", now=start)
    store.exchange(first, request=ClaimRequest(count=1), now=start)
    later = start + 1000.0
    other = register(app.store, "a worker of jobs", now=later)
    assert app.store.rescue(other, careful_age=10.0, now=later).workers == ["first"]
    assert store.rescue(other, careful_age=10.0, now=later).requeued == 1


def test_a_worker_that_retires_gives_its_rows_back_free_of_charge(lab: Lab) -> None:
    lab.create(3)
    app = lab.app()
    consumer(app, lab)(lambda_consumer())
    store = store_of(app, "birdnet")
    worker = register(app.store, "w")
    assert len(store.exchange(worker, request=ClaimRequest(count=2)).claims) == 2
    store.retire(worker)
    assert lab.claims() == []


def test_rows_of_a_worker_that_retires_wake_all_who_sleep(lab: Lab) -> None:
    lab.create(2)
    app, both = lab.app(), threading.Barrier(2, timeout=100)

    @consumer(app, lab)
    def birdnet(recording: Row) -> None:
        both.wait()

    leaving = register(app.store, "leaving")
    store = store_of(app, "birdnet")
    assert len(store.exchange(leaving, request=ClaimRequest(count=2)).claims) == 2
    chosen: dict[str, Any] = {"poll_interval": 600.0, "concurrency": 1}
    with (
        app.consuming("birdnet", **chosen).background() as one,
        app.consuming("birdnet", **chosen).background() as two,
    ):
        eventually(lambda: lab.sleeps(one.id) and lab.sleeps(two.id))
        store.retire(leaving)
        eventually(lambda: lab.marks("birdnet") == {1: True, 2: True})


def test_two_workers_never_get_the_same_row(lab: Lab) -> None:
    lab.create(300)
    app = lab.app()
    consumer(app, lab)(lambda_consumer())
    workers = [register(app.store, f"w{n}") for n in range(4)]
    stores = [store_of(app, "birdnet") for _ in workers]
    taken: list[str] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while claims := stores[number].exchange(workers[number], request=ClaimRequest(count=7)).claims:
                taken.extend(str(claim.unique_key) for claim in claims)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sorted(map(int, taken)) == list(range(1, 301))
