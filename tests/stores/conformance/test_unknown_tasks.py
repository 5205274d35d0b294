"""Tasks that not every worker knows: left out, given back, put off, and due when somebody knows them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from rowlock.claim_outcomes import put_off
from rowlock.job import EVERY_TASK, Claim, ClaimRequest, Ending
from rowlock.stores.sql.store import Store
from rowlock.strategies import names
from tests.stores.interleaving import meanwhile
from tests.stores.steps import add, end, events, job, new, run_sql, state, table, take, worker

NOW = 1_800_000_000.0


def give_back(store: Store, claim: Claim, now: float | None = None) -> None:
    """As a worker does that does not know the task."""
    assert not store.exchange(claim.claimed_by, [put_off(claim, unless_known=True)], now=now).lost


def put_off_job(store: Store, **fields: Any) -> int:
    """A job that was given back while no living worker knew its task."""
    (id,) = add(store, now=NOW, **fields)
    (claim,) = take(store, worker(store, "ignorant", now=NOW, other=3), now=NOW)
    give_back(store, claim, now=NOW)
    store.retire(claim.claimed_by, now=NOW)
    assert (state(store, id), job(store, id).error_kind) == ("scheduled", "unknown_task")
    return id


# -- what is left out --------------------------------------------------------------------------------


@pytest.mark.no_cover  # what it runs is measured elsewhere, and here it would take twice as long
@pytest.mark.parametrize("strategy", names())
def test_a_claim_steps_over_the_tasks_that_it_leaves_out(store: Store, strategy: str) -> None:
    """Some are ahead, some behind, some have a queue or a level of priority for themselves."""
    who = worker(store)
    left_out = ("foreign", 'odd "one" \\')
    for count, named in product((1, 3, 20), ((), ("b",), ("b", "c", "d"))):
        tasks = [
            (queue, level, task)
            for queue, level in product("abcd", (5, 0, -5))
            for task in (*left_out, *["known"] * (level < 5 and queue in "bd"), *left_out)
        ]
        new_jobs = [new(task, queue=queue, priority=level) for queue, level, task in tasks]
        given = [one.id for one in store.insert(new_jobs)]
        mine = [id for id, one in zip(given, tasks, strict=True) if one[2] == "known"]
        claims: list[Claim] = []
        for queues in (named, ()):  # first those of the named queues, then all others
            while got := take(store, who, count, strategy=strategy, queues=queues, unknown=left_out):
                assert len(got) <= count
                assert not queues or {claim.queue for claim in got} <= set(queues)
                claims += got
        assert sorted(claim.id for claim in claims) == mine


@pytest.mark.parametrize("strategy", ["FIFO", "LIFO", "PRIORITY"])
def test_the_order_is_that_of_the_strategy_whatever_is_left_out(store: Store, strategy: str) -> None:
    who = worker(store)
    ids = [add(store, task=task, priority=level)[0] for level in (0, 3, 1) for task in ("foreign", "known")]
    known = ids[1::2]
    order = {"FIFO": known, "LIFO": known[::-1], "PRIORITY": [known[1], known[2], known[0]]}[strategy]
    first = take(store, who, 1, strategy=strategy, unknown=("foreign",))
    rest = take(store, who, 5, strategy=strategy, unknown=("foreign",))
    assert [claim.id for claim in first + rest] == order


@pytest.mark.parametrize("count", [1, 3])
def test_a_queue_that_is_paused_or_has_its_own_strategy_is_stepped_over_alike(
    store: Store, count: int
) -> None:
    who = worker(store)
    add(store, 3, task="foreign", queue="a")
    add(store, task="known", queue="b")
    mine = add(store, 2, task="known", queue="c")
    add(store, 3, task="foreign", queue="c")
    store.set_queue("b", paused=True)
    store.set_queue("c", strategy="LIFO")
    claims = [claim.id for _ in range(2) for claim in take(store, who, count, unknown=("foreign",))]
    assert claims == mine[::-1]


@pytest.mark.parametrize("strategy", names())
@pytest.mark.parametrize("count", [1, 4])
def test_a_job_that_has_to_run_alone_is_left_out_and_others_are_not_held_up(
    store: Store, strategy: str, count: int
) -> None:
    who = worker(store)
    (isolated,) = add(store, task="foreign", priority=9)
    run_sql(store, f"UPDATE {table(store, 'rowlock_jobs')} SET isolate = 5 WHERE id = {isolated}")
    mine = add(store, count, task="known")
    assert store.isolated_waiting([]) and not store.isolated_waiting([], ["foreign"])
    claims = take(store, who, count, strategy=strategy, unknown=("foreign",))
    assert sorted(claim.id for claim in claims) == mine
    (claim,) = take(store, who, count, strategy=strategy)
    assert claim.id == isolated


@pytest.mark.parametrize("count", [1, 6])
def test_a_job_that_has_to_run_alone_has_its_turn_behind_queues_that_are_left_out(
    store: Store, count: int
) -> None:
    who = worker(store)
    (isolated,) = add(store, task="known", queue="b")
    run_sql(store, f"UPDATE {table(store, 'rowlock_jobs')} SET isolate = 5 WHERE id = {isolated}")
    add(store, 40, task="known", queue="b")
    add(store, 40, task="known", queue="c")
    for queue in ("a", "aa", "bb"):
        add(store, 3, task="foreign", queue=queue)
    claimed, after = [], ""
    for _ in range(4):
        want = ClaimRequest(count=count, strategy="FIFO", after=after, unknown=("foreign",))
        got = store.exchange(who, request=want)
        after = got.last_queue
        claimed.append([claim.id for claim in got.claims])
    assert [isolated] in claimed


def test_a_job_that_was_promoted_is_left_out_like_any_other(store: Store) -> None:
    who = worker(store)
    add(store, task="foreign", delay=5.0, now=NOW)
    (mine,) = add(store, task="known", delay=6.0, now=NOW)
    assert store.promote(10, now=NOW + 10) == 2
    assert [claim.id for claim in take(store, who, 2, unknown=("foreign",))] == [mine]


# -- what becomes of a job that its worker does not know -----------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "queues", "comes_back"),
    [
        ({"foreign": 3}, (), True),
        ({"foreign": 3}, ("q", "r"), True),
        ({EVERY_TASK: 3}, (), True),
        ({"foreign": 3}, ("r",), False),
        ({"else": 3}, (), False),
    ],
)
def test_it_goes_back_at_once_while_a_living_worker_knows_and_takes_it(
    store: Store, tasks: dict[str, int], queues: tuple[str, ...], comes_back: bool
) -> None:
    worker(store, "other", queues=queues, **tasks)
    (id,) = add(store, task="foreign", queue="q")
    (behind,) = add(store, task="foreign", queue="q")
    (claim,) = take(store, worker(store))
    give_back(store, claim)
    found = job(store, id)
    assert (found.state, found.failures, found.claim) == ("queued" if comes_back else "scheduled", 0, 1)
    assert found.error_kind == (None if comes_back else "unknown_task")
    (entry,) = store.history(id)
    assert (entry.event, entry.error_kind) == ("released", "unknown_task")
    assert take(store, "other", queues=("q",), strategy="FIFO")[0].id == (id if comes_back else behind)


def test_a_worker_that_is_silent_or_has_ended_knows_nothing(store: Store) -> None:
    worker(store, "silent", lease=5.0, now=NOW, foreign=3)
    store.retire(worker(store, "ended", now=NOW, foreign=3), now=NOW)
    (id,) = add(store, task="foreign", now=NOW)
    (claim,) = take(store, worker(store, now=NOW), now=NOW + 1)
    give_back(store, claim, now=NOW + 10)
    assert state(store, id) == "scheduled"


def test_what_nobody_knows_waits_longer_each_time_up_to_five_minutes(store: Store) -> None:
    who, moment = worker(store, lease=10_000.0, now=NOW), NOW
    (id,) = add(store, task="foreign", now=NOW)
    waits = []
    for _ in range(8):
        (claim,) = take(store, who, now=moment)
        give_back(store, claim, now=moment)
        waits.append(round(job(store, id).run_at.timestamp() - moment))
        moment += waits[-1] + 1
        assert store.promote(1, now=moment) == 1
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert job(store, id).failures == 0


# -- when somebody knows it after all ------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [{"foreign": 3}, {EVERY_TASK: 3}], ids=["by name", "every task"])
def test_a_job_that_was_put_off_is_due_when_a_worker_that_knows_it_registers(
    store: Store, tasks: dict[str, int]
) -> None:
    id = put_off_job(store, task="foreign", queue="q")
    worker(store, "elsewhere", queues=("r",), now=NOW + 1, **tasks)
    worker(store, "otherwise", now=NOW + 1, another=3)
    assert state(store, id) == "scheduled"
    who = worker(store, "knowing", queues=("r", "q"), now=NOW + 2, **tasks)
    found = job(store, id)
    assert (found.state, found.error, found.error_kind) == ("queued", None, None)
    assert found.run_at.timestamp() == NOW + 2
    assert [claim.id for claim in take(store, who, now=NOW + 2)] == [id]


def test_a_job_that_is_given_back_while_the_worker_that_knows_it_registers_does_not_wait(
    store: Store,
) -> None:
    (id,) = add(store, task="foreign")
    (claim,) = take(store, worker(store, "ignorant", other=3))
    with meanwhile(store, "write", lambda: give_back(store, claim)) as gave_back:
        worker(store, "knowing", foreign=3)
    assert gave_back.happened
    assert state(store, id) == "queued"


def test_only_what_was_put_off_for_that_reason_is_due_then(store: Store) -> None:
    who = worker(store, "first", now=NOW, foreign=3)
    add(store, task="foreign", delay=60.0, now=NOW)
    for ending in (Ending.RETRY, Ending.RELEASED):
        add(store, task="foreign", now=NOW)
        (claim,) = take(store, who, now=NOW)
        end(store, claim, ending, delay=60.0, error="e", error_kind="exception", now=NOW)
    store.retire(who, now=NOW)
    given_back = put_off_job(store, task="foreign")  # and then by one that knew it, for later
    store.promote(10, now=NOW + 6)
    (claim,) = take(store, worker(store, "second", now=NOW + 6, other=3), now=NOW + 6)
    assert claim.id == given_back
    end(store, claim, Ending.RELEASED, delay=60.0, now=NOW + 6)
    worker(store, "third", now=NOW + 7, foreign=3)
    assert store.idle([], now=NOW + 7) and job(store, given_back).error_kind is None
    assert store.promote(10, now=NOW + 7) == 0


def test_a_worker_may_come_to_know_a_task_while_it_lives(store: Store) -> None:
    id = put_off_job(store, task="foreign")
    who = worker(store, now=NOW, other=3)
    store.know(who, (), {"foreign": {"max_attempts": 3}}, now=NOW + 1)
    assert state(store, id) == "queued"
    (claim,) = take(store, worker(store, "ignorant", now=NOW, other=3), now=NOW + 1)
    give_back(store, claim, now=NOW + 1)
    assert state(store, id) == "queued"
    assert events(store, id) == ["released", "released"]


def test_put_off_jobs_line_up_in_their_old_order(store: Store) -> None:
    ids = [put_off_job(store, task="foreign") for _ in range(3)]
    (earlier,) = add(store, task="foreign", now=NOW)
    who = worker(store, now=NOW, foreign=3)
    assert [claim.id for claim in take(store, who, 4, strategy="FIFO", now=NOW)] == [earlier, *ids]


# -- what counts as nothing left -----------------------------------------------------------------------


def test_a_store_is_idle_for_those_who_know_none_of_its_jobs(store: Store) -> None:
    who = worker(store)
    add(store, 2, task="foreign", queue="a")
    take(store, who)
    add(store, task="foreign", queue="a", delay=5.0, now=NOW - 10)
    assert not store.idle([]) and not store.idle([], tasks=["foreign"])
    assert store.idle([], tasks=["known"]) and store.idle(["a"], tasks=[])
    (claim,) = take(store, who)  # one that runs
    assert not store.idle(["a"], tasks=["foreign", "known"]) and store.idle(["b"], tasks=["foreign"])
    end(store, claim)
    add(store, task="known", queue="b")
    assert not store.idle([], tasks=["known"]) and store.idle(["a"], tasks=["known"])
