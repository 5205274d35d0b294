"""What PostgreSQL alone has: answers that are lost on the way, sleepers who are told, the server's clock."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from hashlib import md5

import msgspec
import psycopg
import pytest

from rowlock import JobContext, Poller, Rowlock
from rowlock.claim_outcomes import put_off
from rowlock.errors import OutcomeUnknown
from rowlock.job import ClaimRequest, Ending, LogLine, Outcome, Progress, Report
from rowlock.stores.address import store_for
from rowlock.stores.postgres import PostgresStore
from rowlock.stores.postgres.dialect import CHANNEL
from rowlock.stores.postgres.inserting import stamp
from rowlock.stores.sql.inserting import insert
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection_kinds import borrow
from rowlock.strategies import names
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.stores.steps import add, end, events, job, new, outcome, run_sql, state, take, worker


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as made:
        yield made


@pytest.fixture
def store(postgres_as_new: str) -> Iterator[PostgresStore]:
    with closing(store_for(postgres_as_new)) as made:
        made.open()
        assert isinstance(made, PostgresStore)
        yield made


@pytest.fixture
def shaky(proxy: Proxy, store: PostgresStore, postgres_as_new: str) -> Iterator[Store]:
    """The same queue, reached through a proxy that can lose answers."""
    with closing(store_for(proxy.url(postgres_as_new))) as made:
        made.open()
        yield made


# -- answers that are lost -----------------------------------------------------------------------


def test_an_enqueue_whose_answer_is_lost_is_found_again(shaky: Store, store: Store, proxy: Proxy) -> None:
    proxy.drop_reply_to("INSERT INTO .*rowlock_jobs")
    (made,) = shaky.insert([new()])
    assert proxy.dropped == 1
    assert [found.id for found in store.find()] == [made.id]
    assert job(store, made.id).created_at.timestamp() == pytest.approx(made.now, abs=1e-5)


def test_an_enqueue_whose_answer_cannot_be_read_is_found_again(
    shaky: Store, store: Store, proxy: Proxy
) -> None:
    proxy.garble_reply_to("INSERT INTO .*rowlock_jobs")
    (made,) = shaky.insert([new()])
    assert proxy.dropped == 1
    assert [found.id for found in store.find()] == [made.id]


def test_a_batch_whose_commit_is_answered_in_a_way_that_cannot_be_read_is_looked_up(
    shaky: Store, store: Store, proxy: Proxy
) -> None:
    proxy.garble_reply_to("COMMIT")
    ids = add(shaky, 2)
    assert proxy.dropped == 1
    assert {found.id for found in store.find()} == set(ids)


def test_an_enqueue_that_never_arrived_is_made_again(shaky: Store, store: Store, proxy: Proxy) -> None:
    add(shaky)
    proxy.cut()
    (made,) = shaky.insert([new()])
    assert max(found.id for found in store.find()) == made.id
    assert len(store.find()) == 2


@pytest.mark.parametrize("count", [2, 50])
def test_a_batch_whose_commit_is_not_answered_is_looked_up(
    shaky: Store, store: Store, proxy: Proxy, count: int
) -> None:
    add(shaky)
    proxy.drop_reply_to_commit()
    ids = add(shaky, count)
    assert proxy.dropped == 1
    assert {found.id for found in store.find(limit=100)} >= set(ids)
    assert len(store.find(limit=100)) == count + 1


def test_a_batch_whose_commit_never_arrived_is_not_there(shaky: Store, store: Store, proxy: Proxy) -> None:
    add(shaky)
    proxy.drop_commit()
    with pytest.raises(Exception, match="cannot be reached"):
        add(shaky, 50)
    assert len(store.find(limit=100)) == 1


def test_an_exchange_whose_answer_is_lost_is_said_to_be_unknown(
    shaky: Store, store: Store, proxy: Proxy
) -> None:
    who = worker(store)
    add(store, 2)
    (claim,) = take(store, who)
    done = outcome(claim, Ending.COMPLETED, result="1")
    proxy.drop_reply_to("facts AS MATERIALIZED")
    with pytest.raises(OutcomeUnknown):
        shaky.exchange(who, [done], ClaimRequest(count=1))
    # Given again, the outcome is known to be written; the claim that came with the answer is still held.
    assert shaky.exchange(who, [done], resent=True).lost == []
    assert shaky.exchange(who, [done]).lost == [done]
    assert [claim for _, claim, _ in store.held(who)] == [1]


def test_outcomes_of_others_are_not_taken_for_ones_own(store: Store) -> None:
    who = worker(store)
    add(store, 1)
    (claim,) = take(store, who)
    end(store, claim, Ending.FAILED, error="somebody else's")
    assert store.exchange(who, [outcome(claim, Ending.COMPLETED)], resent=True).lost != []


def test_a_worker_on_a_bad_line_runs_every_job_once(
    proxy: Proxy, store: PostgresStore, postgres_as_new: str
) -> None:
    ran: Counter[int] = Counter()
    with closing(Rowlock(proxy.url(postgres_as_new))) as app:

        @app.task
        def work(number: int) -> int:
            ran[number] += 1
            if number % 10 == 5:
                proxy.drop_reply_to("facts AS MATERIALIZED")
            return number

        with app.worker(concurrency=2).background():
            ids = work.enqueue_many([{"number": number} for number in range(40)])
            eventually(
                lambda: all(job(store, id).state.final for id in ids), 60, "the worker did not get through"
            )
    assert proxy.dropped >= 1
    assert [job(store, id).result for id in ids] == list(range(40))
    assert set(ran.values()) == {1}


def test_a_worker_that_is_never_idle_gives_back_a_claim_that_never_reached_it(
    proxy: Proxy, store: PostgresStore, postgres_as_new: str
) -> None:
    with closing(Rowlock(proxy.url(postgres_as_new))) as app:
        given_back: list[int] = []

        @app.task(name="work")
        def work(ctx: JobContext) -> None:
            if ctx.claim > 1:
                given_back.append(ctx.id)

        def came_back() -> bool:
            if len(added) - busy.tally.completed < 1000:
                added.extend(add(store, 2000))
            return bool(given_back)

        added = add(store, 2000)
        with app.worker(concurrency=1, prefetch=0).background() as busy:
            eventually(lambda: busy.tally.completed > 20, 60)
            proxy.drop_reply_to("facts AS MATERIALIZED")
            eventually(came_back, 60, "the claim stays with a worker that does not know of it")
        assert proxy.dropped == 1
        assert len(given_back) == 1


def test_a_poller_gives_back_a_claim_that_never_reached_it(
    proxy: Proxy, store: PostgresStore, postgres_as_new: str
) -> None:
    with closing(Rowlock(proxy.url(postgres_as_new))) as app, closing(Poller(app)) as poller:
        assert poller.claim() is None
        (id,) = add(store)
        proxy.drop_reply_to("facts AS MATERIALIZED")
        with pytest.raises(OutcomeUnknown):
            poller.claim()
        assert state(store, id) == "running"
        claims = [poller.claim() for _ in range(3)]
        (again,) = [claim for claim in claims if claim is not None]
        assert (again.id, again.claim) == (id, 2)
        assert again.complete()
        assert events(store, id) == ["released", "completed"]


# -- death and claims at the same moment ---------------------------------------------------------


def declared_dead(store: PostgresStore, worker: str) -> str:
    table = f"{store.database.address.schema}.rowlock_workers"
    return f"UPDATE {table} SET dead_at = now(), ended = 'silent' WHERE id = '{worker}'"


def test_a_claim_that_was_committed_while_its_worker_was_declared_dead_is_rescued(
    store: PostgresStore,
) -> None:
    dead, alive = worker(store, "dead"), worker(store, "alive")
    (id,) = add(store)
    take(store, dead)
    # As if the rescuer had looked for its claims just before this one was committed.
    run_sql(store, declared_dead(store, dead))
    assert store.rescue(alive, careful_age=10.0).requeued == 1
    assert state(store, id) == "queued"
    assert store.rescue(alive, careful_age=10.0).workers == []


def test_a_beat_and_a_claim_do_not_wait_for_a_rescuer_of_somebody_else(store: PostgresStore) -> None:
    one, other = worker(store, "one"), worker(store, "other")
    add(store, 2)
    (claim,) = take(store, one)
    with store.database.write() as tx:
        tx.connection.own_cursor.execute(declared_dead(store, one))
        tx.rows("held_by", worker=one)
        tx.run("rescue_requeue", id=claim.id, claim=claim.claim, charge=1, isolate=1)
        assert store.beat(other, "FIFO")
        assert len(take(store, other)) == 1


def test_a_report_that_was_held_up_does_not_hide_the_newer_runs(
    store: PostgresStore, postgres_as_new: str, postgres_url: str
) -> None:
    """Its statement saw that its claim held; when it comes to write, the next run has reported already."""
    schema = postgres_as_new.rpartition("=")[2]
    hold_up = f"""
        CREATE FUNCTION {schema}.hold_up() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(17); RETURN NEW; END';
        CREATE TRIGGER held_up BEFORE INSERT ON {schema}.rowlock_progress FOR EACH ROW
            WHEN (NEW.claim = 1) EXECUTE FUNCTION {schema}.hold_up()"""
    (id,) = add(store)
    take(store, worker(store, "old"))
    late = Report(id=id, claim=1, progress=Progress(1))
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(hold_up.encode())
        other.execute("SELECT pg_advisory_lock(17)")
        thread = threading.Thread(target=lambda: store.report([late]))
        thread.start()
        eventually(
            lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND objid = 17").fetchall()
        )
        store.retire("old")
        (claim,) = take(store, worker(store, "new"))
        store.report([Report(id=id, claim=claim.claim, progress=Progress(2))])
        other.execute("SELECT pg_advisory_unlock(17)")
        thread.join()
    assert job(store, id).progress == Progress(2)


# -- what a batch costs --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", list(Ending))
def test_a_batch_of_outcomes_costs_a_few_round_trips_and_not_some_for_each(
    shaky: Store, store: Store, proxy: Proxy, ending: Ending
) -> None:
    who = worker(store)
    add(store, 100)
    claims = take(shaky, who, 100)
    reports = [
        Report(id=claim.id, claim=claim.claim, progress=Progress(1), lines=[LogLine(0.0, "a")] * 2)
        for claim in claims
    ]
    end(store, claims[7], Ending.RELEASED)
    before = proxy.questions
    lost = shaky.exchange(who, [outcome(claim, ending, delay=9.0) for claim in claims], reports=reports).lost
    assert [one.id for one in lost] == [claims[7].id]
    assert len(events(store, claims[0].id)) == (ending is not Ending.COMPLETED)
    assert len(store.logs(claims[0].id)) == 2
    # BEGIN, reports (3 kinds), outcomes, timeline, one word to a sleeper, COMMIT.
    assert proxy.questions - before <= 8


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("strategy", names())
def test_an_exchange_is_one_round_trip_unless_a_queue_has_a_strategy_of_its_own(
    shaky: Store, store: Store, proxy: Proxy, strategy: str, count: int
) -> None:
    who = worker(store)
    store.insert([new(queue=name) for name in ("a", "b") for _ in range(100)])

    def questions(queues: tuple[str, ...]) -> int:
        """Of the third exchange: with the first ones statements are prepared."""
        done: list[Outcome] = []
        for _ in range(3):
            before = proxy.questions
            request = ClaimRequest(count=count, strategy=strategy, queues=queues)
            claims = shaky.exchange(who, done, request).claims
            assert len(claims) == count
            asked = proxy.questions - before
            done = [outcome(claim, Ending.COMPLETED) for claim in claims]
        return asked

    assert questions(()) == questions(("a",)) == 1
    store.set_queue("a", paused=True)
    assert questions(()) == questions(("b",)) == questions(("a", "b")) == 1
    store.set_queue("a", paused=False, strategy="LIFO")
    assert questions(("b",)) == 1
    # The statement that says so, BEGIN, what a claim has to know (3), the claim itself (2), COMMIT.
    assert 1 < questions(("a",)) <= 9


def test_a_rescue_of_many_claims_costs_a_few_round_trips(
    shaky: Store, store: PostgresStore, proxy: Proxy
) -> None:
    dead, alive = worker(store, "dead", lease=0.001), worker(store, "alive")
    add(store, 100)
    with psycopg.connect(store.database.address.conninfo) as unseen:  # a claim by one who is dead already
        table = f"{store.database.address.schema}.rowlock_jobs"
        unseen.execute(
            f"UPDATE {table} SET state = 'running', claim = 1, claimed_by = %s, started_at = now()".encode(),
            [dead],
        )
    before = proxy.questions
    assert shaky.rescue(alive, careful_age=10.0).requeued == 100
    assert proxy.questions - before <= 12


# -- who is told ---------------------------------------------------------------------------------


class Ear:
    """Hears what is said to a worker."""

    def __init__(self, url: str, who: str) -> None:
        self.who = who
        self.connection = psycopg.connect(url, autocommit=True)
        self._name = CHANNEL + md5(who.encode(), usedforsecurity=False).hexdigest()
        self._words: list[str] = []
        self.connection.add_notify_handler(lambda word: self._words.append(word.payload))
        self.connection.execute(f'LISTEN "{self._name}"')

    def heard(self) -> int:
        """How many words have come since it was last asked: all that were said before the one it says now."""
        self.connection.execute(f"NOTIFY \"{self._name}\", 'that is all'")
        eventually(lambda: self.connection.execute("SELECT 1") and "that is all" in self._words)
        heard, self._words = self._words.index("that is all"), []
        return heard

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def ears(postgres_url: str, store: PostgresStore) -> Iterator[list[Ear]]:
    # Their names are all over the database, and other tests use it, too.
    made = [
        Ear(postgres_url, worker(store, f"{name} of {store.database.address.schema}"))
        for name in ("one", "two")
    ]
    yield made
    for ear in made:
        ear.close()


def takes(store: PostgresStore, who: str, *queues: str) -> None:
    """Say in a worker's row that it takes these queues only."""
    with store.database.write() as tx:
        table = f"{store.database.address.schema}.rowlock_workers"
        tx.connection.own_cursor.execute(
            f"UPDATE {table} SET queues = %s WHERE id = %s", [msgspec.json.encode(queues).decode(), who]
        )


def test_nobody_is_told_who_does_not_sleep(store: PostgresStore, ears: list[Ear]) -> None:
    add(store)
    add(store, 2)
    add(store, 50)
    assert [ear.heard() for ear in ears] == [0, 0]


def test_one_sleeper_is_told_and_not_all(store: PostgresStore, ears: list[Ear]) -> None:
    store.database.sleepers.fall_asleep(ears[0].who)
    store.database.sleepers.fall_asleep(ears[1].who)
    add(store)
    assert sorted(ear.heard() for ear in ears) == [0, 1]


@pytest.mark.parametrize("count", [2, 50, 2000])
def test_a_batch_is_told_of_once(store: PostgresStore, ears: list[Ear], count: int) -> None:
    store.database.sleepers.fall_asleep(ears[0].who)
    add(store, count)
    assert ears[0].heard() == 1


def test_many_queues_in_one_transaction_are_told_of_once(store: PostgresStore, ears: list[Ear]) -> None:
    for ear in ears:
        store.database.sleepers.fall_asleep(ear.who)
    for _ in range(2):  # the second finds what the first has left behind in its session
        store.insert([new(queue=name) for name in ("mail", "gpu", "mail", "pdf")])
        assert sorted(ear.heard() for ear in ears) == [0, 1]
        store.insert([new(queue=f"queue {number}") for number in range(50)])
        assert sorted(ear.heard() for ear in ears) == [0, 1]


def test_one_who_takes_most_of_the_queues_is_told(store: PostgresStore, ears: list[Ear]) -> None:
    takes(store, ears[0].who, "mail", "gpu")
    takes(store, ears[1].who, "mail")
    for ear in ears:
        store.database.sleepers.fall_asleep(ear.who)
    for _ in range(5):
        store.insert([new(queue="mail"), new(queue="gpu"), new(queue="pdf")])
        assert [ear.heard() for ear in ears] == [1, 0]
    store.insert([new(queue="pdf"), new(queue="ocr")])
    assert [ear.heard() for ear in ears] == [0, 0]


def test_a_word_that_was_rolled_back_can_be_said_again(store: PostgresStore, ears: list[Ear]) -> None:
    store.database.sleepers.fall_asleep(ears[0].who)
    schema = store.database.address.schema
    with psycopg.connect(store.database.address.conninfo) as connection:
        user = borrow(connection)
        connection.execute("SAVEPOINT before")
        store.insert_on(user, [new(), new()])
        connection.execute("ROLLBACK TO before")
        store.insert_on(user, [new()])
        store.insert_on(user, [new(queue="mail")])
        connection.commit()
        assert ears[0].heard() == 1
        store.insert_on(user, [new()])
        connection.rollback()
        assert ears[0].heard() == 0
        store.insert_on(user, [new()])
        connection.commit()
        assert ears[0].heard() == 1
        assert connection.execute(f"SELECT count(*) FROM {schema}.rowlock_jobs").fetchone() == (3,)


def test_a_worker_that_retires_tells_another_and_not_itself(store: PostgresStore, ears: list[Ear]) -> None:
    add(store, 3)
    take(store, ears[0].who, 3)
    for ear in ears:
        store.database.sleepers.fall_asleep(ear.who)
    store.retire(ears[0].who)
    assert [ear.heard() for ear in ears] == [0, 1]


def test_the_word_is_passed_on_only_to_one_who_has_something_to_do(
    store: PostgresStore, ears: list[Ear]
) -> None:
    asking = worker(store, f"asking in {store.database.address.schema}")
    takes(store, ears[0].who, "mail", "gpu")
    takes(store, ears[1].who, "pdf")
    for ear in ears:
        store.database.sleepers.fall_asleep(ear.who)
    store.database.sleepers.wake_another(asking)
    assert [ear.heard() for ear in ears] == [0, 0]
    with store.database.write() as tx:  # unheard, so that only the word that is passed on counts
        insert(tx, [new(queue="gpu")])
    for _ in range(3):
        store.database.sleepers.wake_another(asking)
        assert [ear.heard() for ear in ears] == [1, 0]


@pytest.fixture
def two_apps(store: PostgresStore, postgres_url: str) -> Iterator[list[Ear]]:
    """Sleepers that know one task each, "work" and "other"."""
    names = [f"{task} of {store.database.address.schema}" for task in ("work", "other")]
    made = [
        Ear(postgres_url, worker(store, names[0], work=3)),
        Ear(postgres_url, worker(store, names[1], other=3)),
    ]
    for ear in made:
        store.database.sleepers.fall_asleep(ear.who)
    yield made
    for ear in made:
        ear.close()


@pytest.mark.parametrize("count", [1, 2, 2000])
def test_a_sleeper_is_not_told_of_tasks_that_it_does_not_know(
    store: PostgresStore, two_apps: list[Ear], count: int
) -> None:
    """Also because every word makes commits wait for each other."""
    add(store, count)
    assert [ear.heard() for ear in two_apps] == [1, 0]
    add(store, count, task="unheard of")
    assert [ear.heard() for ear in two_apps] == [0, 0]


def test_what_comes_back_is_told_to_one_who_knows_it(store: PostgresStore, two_apps: list[Ear]) -> None:
    def heard_only_by_the_first() -> bool:
        return [ear.heard() for ear in two_apps] == [1, 0]

    schema = store.database.address.schema
    helping = worker(store, f"helping in {schema}", lease=60.0, mine=3)
    dying = worker(store, f"dying in {schema}", lease=0.5, work=3)
    with store.database.write() as tx:  # unheard
        insert(tx, [new(), new(), new()])
    one, two, three = take(store, helping, 3)
    store.exchange(helping, [put_off(one, unless_known=True)])
    assert heard_only_by_the_first(), "released"
    store.exchange(helping, [outcome(two, Ending.RETRY, delay=0.0)])
    assert store.promote(5) == 1 and heard_only_by_the_first(), "promoted"
    store.exchange(helping, [outcome(three, Ending.FAILED)])
    store.retry(three.id)
    assert heard_only_by_the_first(), "retried"
    assert len(take(store, dying, 3)) == 3
    long_ago = f"UPDATE {schema}.rowlock_workers SET beat_at = now() - interval '9 s' WHERE id = '{dying}'"
    run_sql(store, long_ago)
    assert store.rescue(helping, 60.0).requeued == 3 and heard_only_by_the_first(), "rescued"


def test_the_word_is_passed_on_to_one_who_knows_what_waits(store: PostgresStore, two_apps: list[Ear]) -> None:
    asking = worker(store, f"asking in {store.database.address.schema}")
    with store.database.write() as tx:
        insert(tx, [new()] * 3)
    for _ in range(2):
        store.database.sleepers.wake_another(asking)
        assert [ear.heard() for ear in two_apps] == [1, 0]


def test_who_claims_sleeps_no_longer(store: PostgresStore, ears: list[Ear]) -> None:
    for strategy in ("PRIORITY", "WEIGHTED_RANDOM"):
        store.database.sleepers.fall_asleep(ears[0].who)
        add(store)
        assert ears[0].heard() == 1
        take(store, ears[0].who, strategy=strategy)
        add(store)
        assert ears[0].heard() == 0
        take(store, ears[1].who)


def test_a_sleeper_for_other_queues_is_left_alone(store: PostgresStore, postgres_url: str) -> None:
    who = worker(store, f"gpu only, {store.database.address.schema}")
    takes(store, who, "gpu")
    store.database.sleepers.fall_asleep(who)
    with closing(Ear(postgres_url, who)) as ear:
        add(store, queue="mail")
        assert ear.heard() == 0
        add(store, queue="gpu")
        assert ear.heard() == 1


def test_the_dead_and_the_silent_are_not_told(store: PostgresStore, ears: list[Ear]) -> None:
    store.database.sleepers.fall_asleep(ears[0].who)
    store.database.sleepers.fall_asleep(ears[1].who)
    store.retire(ears[0].who)
    with store.database.write() as tx:
        table = f"{store.database.address.schema}.rowlock_workers"
        tx.connection.own_cursor.execute(f"UPDATE {table} SET beat_at = now() - interval '20 s'")
    add(store)
    assert [ear.heard() for ear in ears] == [0, 0]


def test_a_worker_that_is_full_passes_the_word_on(store: PostgresStore, postgres_as_new: str) -> None:
    with closing(Rowlock(postgres_as_new)) as app:
        both = threading.Barrier(2)

        @app.task
        def meet() -> bool:
            both.wait(timeout=100)
            return True

        workers = [app.worker(concurrency=1, poll_interval=600.0) for _ in range(2)]
        with workers[0].background(), workers[1].background():
            eventually(
                lambda: all(one.polls.consecutive_empty >= 2 for one in workers), message="they never slept"
            )
            ids = meet.enqueue_many([{}, {}])  # one word, and the first to hear it can take only one
            assert [app.result(id, timeout=50) for id in ids] == [True, True]


@pytest.mark.parametrize("queues", [(), ("mail",)])
def test_one_who_takes_some_queues_passes_the_word_on_though_it_has_places_left(
    store: PostgresStore, ears: list[Ear], queues: tuple[str, ...]
) -> None:
    """There is one word per transaction: what came for others with it is theirs to hear of."""
    me, other = ears
    takes(store, me.who, *queues)
    wake = store.wake(lambda: me.who, lambda: None)
    with closing(wake):
        eventually(lambda: wake.alive)
        wake.wait(queue.SimpleQueue(), 0.0, lively=True)  # it falls asleep
        store.insert([new(queue="mail"), new(queue="gpu")])
        store.database.sleepers.fall_asleep(other.who)
        assert [one.queue for one in take(store, me.who, queues=("mail",))] == ["mail"]
        wake.claimed(leaves_some=False)
        assert other.heard() == len(queues)


# -- the server's clock --------------------------------------------------------------------------


def test_the_clock_of_the_caller_decides_nothing(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400.0)
    who = worker(store)
    (later,) = add(store, delay=3600.0)
    (soon,) = add(store)
    add(store, 60)
    assert state(store, later) == "scheduled"
    assert store.promote(10) == 0
    assert abs(job(store, soon).created_at.timestamp() - real()) < 60
    claim = take(store, who, strategy="FIFO")[0]
    assert abs(claim.taken - real()) < 60
    assert store.rescue(who, careful_age=10.0).workers == []
    assert end(store, claim, Ending.RETRY, delay=5.0)
    assert abs(job(store, soon).run_at.timestamp() - real() - 5.0) < 60


# -- the draw that the server makes --------------------------------------------------------------


def test_levels_are_drawn_by_the_server_as_their_weights_say(store: PostgresStore) -> None:
    who = worker(store)
    weights = {0: 1, 2: 3, 5: 6}
    drawn: Counter[int] = Counter()
    for level in weights:
        add(store, priority=level)
    for _ in range(600):
        (claim,) = take(store, who, strategy="WEIGHTED_RANDOM")
        drawn[claim.priority] += 1
        end(store, claim, Ending.RELEASED)  # so that every level always has work
    expected = {level: 600 * weight / sum(weights.values()) for level, weight in weights.items()}
    chi_square = sum((drawn[level] - fair) ** 2 / fair for level, fair in expected.items())
    assert chi_square < 60.0, drawn  # 2 degrees of freedom: once in 10^13 runs; all alike would be 400


def test_a_draw_that_finds_its_level_locked_is_made_again_among_the_others(store: PostgresStore) -> None:
    who = worker(store)
    (locked,) = add(store, priority=100)
    (free,) = add(store, priority=0)
    with store.database.write() as tx:
        tx.connection.own_cursor.execute(
            f"SELECT 1 FROM {store.database.address.schema}.rowlock_jobs WHERE id = {locked} FOR UPDATE"
        )
        for _ in range(5):
            (claim,) = take(store, who, strategy="WEIGHTED_RANDOM")
            assert claim.id == free
            assert end(store, claim, Ending.RELEASED)


@pytest.mark.parametrize("seconds", [1794979680.6661954, 1794979680.6812146, 1794979680.9999998])
def test_a_moment_is_written_as_other_stores_show_it(seconds: float) -> None:
    shown = datetime.fromtimestamp(seconds, timezone.utc)
    assert stamp(seconds).endswith(f" {shown:%H:%M:%S.%f} UTC")
