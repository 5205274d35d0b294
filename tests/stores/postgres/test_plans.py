"""Every hot statement finds its rows by an index, among a million rows that are finished or dead.

Nothing is analysed or vacuumed: that is how a queue is after a burst, and no plan may depend on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from rowlock import strategies
from rowlock.job import ClaimRequest, Ending, Outcome
from rowlock.stores.address import store_for
from rowlock.stores.postgres import PostgresStore
from rowlock.stores.postgres.dialect import INDEXES, statements
from rowlock.stores.postgres.session import PostgresSession
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.strategies import HIGHEST, LOWEST, NEWEST, Strategy, get_strategy, register
from tests.eventually import eventually
from tests.servers.folders import locked
from tests.servers.postgres import PostgresServer, schema_url
from tests.stores.steps import worker

pytestmark = pytest.mark.no_cover  # the statements are run by hand; what writes them is measured elsewhere
SCHEMA = "test_plans"
QUEUES = 5  # q0 to q4; q5 is the one that was busy
# First and last id, in the order in which they are written.
DEAD = (1, 360_000)
DEAD_IN_LINE = (360_001, 400_000)
COMPLETED = (400_001, 1_000_000)
QUEUED = (1_000_001, 1_003_000)
SCHEDULED = (1_003_001, 1_003_500)
RUNNING = (1_003_501, 1_003_540)
FAILED = (1_003_541, 1_004_000)
BUSY = (1_004_001, 1_004_100)
SIZES = (10_000, 100_000, 300_000, 500_000, 700_000)  # in jobs of usual length
RUN = ", ANALYZE, BUFFERS"
ENOUGH_BLOCKS = 150  # the most that any takes is about 50; the table has 16,000

VALUES: dict[str, Any] = {
    "include_refused": 1,
    "after": "q1",
    "age": 60.0,
    "all": 0,
    "isolate": 0,
    "at": 1.0,
    "begins": 1,
    "before": BUSY[1] + 1,
    "beyond": COMPLETED[0],
    "charge": 1,
    "claim": 1,
    "count": 1,
    "delay": 1.0,
    "done": 1.0,
    "error": "e",
    "error_kind": "k",
    "fields": "{}",
    "id": RUNNING[0],
    "ids": "[400001, 400002]",
    "keep_completed": 0.0,
    "keep_failed": 0.0,
    "level": 3,
    "limit": 11,
    "marks": '[{"level": 3, "low": 1, "high": 1001000}, {"level": 5, "low": 1001000, "high": 9000000}]',
    "message": "m",
    "most": 10,
    "note": "",
    "now": None,
    "position": 1,
    "queue": "q2",
    "queues": '["q1"]',
    "result": "1",
    "state": "failed",
    "task": "work",
    "task_names": '["work"]',
    "token": QUEUED[1],
    "total": 2.0,
    "unknown": '["other"]',
    "unique_key": f"k{QUEUED[0] + 49}",
    "worker": "w1",
}
# By the names of strategies, of which the last ones are registered for these tests alone.
LINES = {
    "PRIORITY": "rowlock_jobs_ready",
    "FIFO": "rowlock_jobs_line",
    "LIFO": "rowlock_jobs_line",
    "LOWEST_NEWEST": "rowlock_jobs_ready",
}
OWN = (Strategy("LOWEST_NEWEST", (LOWEST, NEWEST)), Strategy("HIGHEST_NEWEST", (HIGHEST, NEWEST)))
NAMED = ("q0", "q1", "q2", "q3")
OTHER = ("other", "another")  # tasks that are left out
# In a plain transaction.
TAKES = {
    **{f"take by {name}": line for name, line in LINES.items()},
    "take at a level by WEIGHTED_RANDOM": "rowlock_jobs_ready",
}
# The same at marks. By FIFO and LIFO the first few of each level are sorted, which looks like a sort of all.
MARKED = {
    **{f"take at marks by {name}": "rowlock_jobs_ready" for name in ("PRIORITY", "LOWEST_NEWEST")},
    "take at a level at marks by WEIGHTED_RANDOM": "rowlock_jobs_ready",
}
FINISHES = (
    *(name for name in statements(SCHEMA) if name.startswith("finish")),
    *("report_progress", "report_line", "rescue_requeue"),
)
OTHERS = (
    *("levels", "queue_after", "next_queue", "claim_facts", "queue_has_work", "held", "held_by", "due_jobs"),
    *("expired_jobs", "next_needed", "unique_holder", "get_job", "isolated_waiting", "overdue_running"),
    *("overdue_queued", "oldest_queued", "find_running", "find_bad", "prune_page", "prune_jobs", "promote"),
    *("find_by_token", "cancel", "silent_workers", "busy", "workers", "retry_job"),
    *("newest_created_at", "due_heads", "living_workers", "queue_has_tasks"),
    *("put_off_jobs", "offer", "claim_isolated", "sweep_oldest", "sweep_newest"),
    *("refused_jobs", "declare_dead", "dead_holders"),
)


class Case(NamedTuple):
    """A statement by its name, or the one that an exchange asks; `line` is the index it has to walk along."""

    name: str
    values: dict[str, Any]
    blocks: int = ENOUGH_BLOCKS
    line: str = ""
    request: ClaimRequest | None = None
    done: int = 0


def exchanges(
    queues: tuple[str, ...], count: int, after: str = "q1", blocks: int = 0, unknown: tuple[str, ...] = ()
) -> dict[str, Case]:
    """Exchanges by strategies whose order an index has, with nothing, one or more to hand back."""
    return {
        f"{order} {count} of {' '.join(queues) or 'all'} for {done}{' but' * bool(unknown)}": Case(
            "exchange",
            {},
            blocks or ENOUGH_BLOCKS,
            line,
            ClaimRequest(count=count, strategy=order, queues=queues, after=after, unknown=unknown),
            done,
        )
        for order, line in LINES.items()
        for done in range(1 if unknown else 3)
    }


CLAIMS = {
    **exchanges((), 1),
    **exchanges(NAMED[:1], 1),
    **exchanges(NAMED, 1),
    **exchanges(NAMED, 8, blocks=300),
    **exchanges((), 8, blocks=2500),  # among them q5, with its dead
    **exchanges((), 1, unknown=OTHER),
    **exchanges(NAMED[:1], 1, unknown=OTHER),
    **exchanges(NAMED, 8, blocks=300, unknown=OTHER),
    **exchanges((), 8, blocks=2500, unknown=OTHER),
    **{name: Case(name, {}, line=line) for name, line in TAKES.items()},
}
CASES = CLAIMS | {
    **{name: Case(name, {}, line=line) for name, line in MARKED.items()},
    **{name: Case(name, {}) for name in (*FINISHES, *OTHERS)},
    "depth": Case("depth", {}, 2500),  # all that waits, among it q5 with its dead
    "depth_of_queue": Case("depth_of_queue", {}),
    "find_bad": Case("find_bad", {}, blocks=300),  # more, while an older server has not vacuumed yet
    "find_by_token": Case("find_by_token", {}, 2500),  # among the last 100,000 ids
    "find_all": Case("find", {"queue": None, "task": None}),
    "find_in_queue": Case("find", {"task": None}),
    "find_of_task": Case("find", {"queue": None}),
    "find_in_queue_of_task": Case("find", {}),
}
AT_THE_DEAD = {
    **exchanges((), 1, after="q4"),
    **exchanges(("q5",), 1),
    **{name: Case(name, {"queue": "q5"}) for name in TAKES},
}


# What takes the first few of many, also in batches whose size is in the statement if it is not prepared.
WHILE_IT_GROWS = {
    **{name: case for name, case in CLAIMS.items() if not case.done},
    **{name: Case(name, {}, line=line) for name, line in MARKED.items()},
    **{f"{name} for 100": Case(name, {"count": 100}, line=line) for name, line in TAKES.items()},
    **{
        f"{name} {count} of {' '.join(queues) or 'all'}{' but' * bool(unknown)}": Case(
            "exchange",
            {},
            line="rowlock_jobs_ready",
            request=ClaimRequest(count=count, strategy=name, queues=queues, unknown=unknown),
        )
        for name in ("WEIGHTED_RANDOM", "HIGHEST_NEWEST")
        for count in (1, 8)
        for queues in ((), NAMED[:1])
        for unknown in ((), OTHER)
    },
    "overdue_queued": Case("overdue_queued", {"count": 20}, line="rowlock_jobs_ready"),
    "oldest_queued": Case("oldest_queued", {}, line="rowlock_jobs_ready"),
    "levels": Case("levels", {}, line="rowlock_jobs_ready"),
    "due_jobs": Case("due_jobs", {"most": 1_000}, line="rowlock_jobs_due"),
    "next_needed": Case("next_needed", {}, line="rowlock_jobs_due"),
    "expired_jobs": Case("expired_jobs", {"most": 1_000}, line="rowlock_jobs_expiring"),
    **{name: Case(name, {}) for name in ("queue_after", "next_queue", "claim_facts")},
}


class Asked(Exception):
    """What a store was about to ask the server."""

    def __init__(self, sql: str, values: dict[str, Any]) -> None:
        super().__init__(sql)
        self.sql = sql
        self.values = values


class Sessions(NamedTuple):
    """One of the store's own, with its settings, and one as a pooler or a user has them."""

    store: PostgresStore
    own: psycopg.Connection
    plain: psycopg.Connection
    exchanges: dict[
        tuple[ClaimRequest, int], tuple[str, dict[str, Any]]
    ]  # asked once: each costs a connection

    def sql(self, case: Case) -> tuple[str, dict[str, Any]]:
        """The statement and its values."""
        if case.name.startswith("take "):
            kind, _, name = case.name.rpartition(" by ")
            claims = ClaimSql(statements(self.store.database.address.schema), INDEXES)
            strategy = get_strategy(name)
            marked = kind.endswith("at marks")
            return claims.take(strategy, marked), VALUES | case.values
        if case.request is None:
            return statements(self.store.database.address.schema)[case.name], VALUES | case.values
        if (case.request, case.done) not in self.exchanges:
            self.exchanges[case.request, case.done] = self._asked(case.request, case.done)
        return self.exchanges[case.request, case.done]

    def _asked(self, request: ClaimRequest, done: int) -> tuple[str, dict[str, Any]]:
        outcomes = [
            Outcome(id=RUNNING[0] + number, claim=1, ending=Ending.COMPLETED, result="1")
            for number in range(done)
        ]

        def tell(session: object, sql: str, values: dict[str, Any]) -> None:
            raise Asked(sql, values | {"now": None})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PostgresSession, "ask", tell)
            with pytest.raises(Asked) as asked:
                self.store.exchange("w1", outcomes, request)
        return asked.value.sql, asked.value.values

    def explain(self, case: Case, options: str = "") -> dict[str, Any]:
        """The plan for these very values: of a statement that is not prepared, as through a pooler."""
        sql, values = self.sql(case)
        with self.plain.transaction(force_rollback=True):
            return plan_of(self.plain.execute(f"EXPLAIN (FORMAT JSON{options}) {sql}".encode(), values))

    def explain_generic(self, case: Case, options: str = "") -> dict[str, Any]:
        """The plan for any values: of a statement that is prepared, as on the store's own connections."""
        sql, values = self.sql(case)
        names: list[str] = []

        def numbered(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        sql = re.sub(r"%\((\w+)\)s", numbered, sql)
        given = f"({', '.join(f'%({name})s' for name in names)})" if names else ""
        with self.own.transaction(force_rollback=True):
            self.own.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            self.own.execute(f"PREPARE generic AS {sql}".encode())
            try:
                question = f"EXPLAIN (FORMAT JSON{options}) EXECUTE generic{given}"
                return plan_of(psycopg.ClientCursor(self.own).execute(question.encode(), values))
            finally:
                self.own.execute("DEALLOCATE generic")


@contextmanager
def sessions(url: str) -> Iterator[Sessions]:
    with closing(store_for(url)) as store, psycopg.connect(url.partition("?")[0], autocommit=True) as plain:
        assert isinstance(store, PostgresStore)
        store.open()
        with closing(store.database.connect()) as connection:
            yield Sessions(store, connection, plain, {})


@pytest.fixture(scope="module", autouse=True)
def own_strategies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "_STRATEGIES", dict(strategies._STRATEGIES))
        for strategy in OWN:
            register(strategy)
        yield


@pytest.fixture(scope="module", params=["postgres", "old_postgres"])
def db(request: pytest.FixtureRequest, shared_folder: Path) -> Iterator[Sessions]:
    """Sessions beside the million rows, which all processes of the run share; nothing is committed."""
    server: PostgresServer = request.getfixturevalue(request.param)
    there = f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}'"
    with locked(shared_folder / f"plans-{request.param}"):
        if not server.execute(there):
            fill(server)
    with sessions(schema_url(server.url, SCHEMA)) as both:
        yield both


def fill(server: PostgresServer) -> None:
    """A queue with a long past; one transaction, so that half of it is never found."""
    with closing(store_for(schema_url(server.url, f"{SCHEMA}_new"))) as store:
        store.open()
        for number in range(4):
            worker(store, f"w{number}")
    with psycopg.connect(server.url) as connection:
        connection.execute(f"ALTER SCHEMA {SCHEMA}_new RENAME TO {SCHEMA}")
        connection.execute(f"SET search_path TO {SCHEMA}")
        for table in ("jobs", "workers", "queues", "progress"):
            connection.execute(f"ALTER TABLE rowlock_{table} SET (autovacuum_enabled = off)")
        write(connection, DEAD, "completed")
        write(connection, DEAD_IN_LINE, "queued", queue="'q5'")
        connection.execute("DELETE FROM rowlock_jobs")
        write(connection, COMPLETED, "completed")
        write(connection, QUEUED, "queued")
        write(connection, SCHEDULED, "scheduled")
        write(connection, RUNNING, "running")
        write(connection, FAILED, "failed")
        write(connection, BUSY, "queued", queue="'q5'")


def write(
    connection: psycopg.Connection,
    ids: tuple[int, int],
    state: str,
    queue: str = f"'q' || n % {QUEUES}",
    args: str = "{}",
) -> None:
    connection.execute(
        f"""
        INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, claim, token, created_at,
                                  run_at, due_at, expires_at, finished_at, claimed_by, unique_key,
                                  unique_until, args)
        SELECT n, n, 'work', {queue}, n % 7, '{state}', 1, n, now(),
               now() + n % 100 * interval '1 min', now(),
               CASE WHEN n % 10 = 0 AND n > {DEAD_IN_LINE[1]} THEN now() + n % 50 * interval '1 min' END,
               CASE WHEN '{state}' IN ('completed', 'failed') THEN now() END, 'w' || n % 4,
               CASE WHEN n % 50 = 0 THEN 'k' || n END, CASE WHEN n % 50 = 0 THEN 'finished' END, '{args}'
        FROM generate_series({ids[0]}, {ids[1]}) n
        """.encode()
    )


def plan_of(cursor: psycopg.Cursor[Any]) -> dict[str, Any]:
    ((answer,),) = cursor.fetchall()
    plan: dict[str, Any] = answer[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All steps of a plan: those of subqueries and common table expressions are among its `Plans`."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def indexes(plan: dict[str, Any]) -> set[str]:
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def whole_tables(plan: dict[str, Any]) -> list[str]:
    return [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


def sorted_jobs(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that sort rows of the jobs' table."""
    sorts = [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    return [
        sort for sort in sorts if any(node.get("Relation Name") == "rowlock_jobs" for node in nodes(sort))
    ]


def gathered_jobs(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that go through rows of the jobs' table for the least, the greatest or the number of them."""
    return [
        node
        for node in nodes(plan)
        if node["Node Type"] == "Aggregate"
        and any(part.get("Relation Name") == "rowlock_jobs" for part in node["Plans"])
    ]


def walks_along(plan: dict[str, Any], line: str) -> bool:
    """True if it goes by the order of this index (none named: of any), and stops after the first few."""
    return not sorted_jobs(plan) and not gathered_jobs(plan) and (not line or line in indexes(plan))


def blocks(plan: dict[str, Any]) -> int:
    """How many blocks were looked at."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_statement_reads_the_whole_table(db: Sessions, case: Case) -> None:
    assert "rowlock_jobs" not in whole_tables(db.explain(case))
    assert "rowlock_jobs" not in whole_tables(db.explain_generic(case))


@pytest.mark.parametrize("case", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_walks_along_the_index_of_its_order(db: Sessions, case: Case) -> None:
    for plan in (db.explain(case), db.explain_generic(case)):
        assert {case.line, "rowlock_jobs_pkey"} <= indexes(plan)
        # The index has the order already: a sort would first have to read all that waits.
        assert sorted_jobs(plan) == []


@pytest.mark.parametrize("name", ["depth", "depth_of_queue"])
def test_the_depth_is_read_from_an_index_of_what_waits_alone(db: Sessions, name: str) -> None:
    plan = db.explain_generic(CASES[name])
    assert [node["Node Type"] for node in nodes(plan)] == ["Aggregate", "Index Only Scan"]
    assert indexes(plan) <= {"rowlock_jobs_ready", "rowlock_jobs_line"}


@pytest.mark.parametrize("name", FINISHES)
def test_a_finish_goes_by_the_key_and_not_through_all_that_runs(db: Sessions, name: str) -> None:
    for plan in (db.explain(CASES[name]), db.explain_generic(CASES[name])):
        assert "rowlock_jobs_pkey" in indexes(plan)
        assert "rowlock_jobs_held" not in indexes(plan)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_statement_looks_at_few_blocks(db: Sessions, case: Case) -> None:
    assert blocks(db.explain_generic(case, RUN)) < case.blocks
    assert blocks(db.explain(case, RUN)) < case.blocks


@pytest.mark.parametrize("schema", ["postgres_schema", "old_postgres_schema"])
def test_a_plan_that_was_made_for_an_empty_queue_is_good_for_a_full_one(
    schema: str, request: pytest.FixtureRequest
) -> None:
    """A prepared statement keeps its plan until somebody analyses the table, and by then it may be large."""
    with sessions(request.getfixturevalue(schema)) as both:
        claims = {name: both.explain_generic(case) for name, case in CLAIMS.items()}
        others = {name: both.explain_generic(case) for name, case in WHILE_IT_GROWS.items()}
        finishes = {name: both.explain_generic(CASES[name]) for name in FINISHES}
    assert [name for name, plan in (claims | finishes).items() if "rowlock_jobs" in whole_tables(plan)] == []
    assert [name for name, plan in claims.items() if not walks_along(plan, CLAIMS[name].line)] == []
    assert [name for name, plan in others.items() if not walks_along(plan, WHILE_IT_GROWS[name].line)] == []
    assert [name for name, plan in finishes.items() if "rowlock_jobs_held" in indexes(plan)] == []


@pytest.mark.parametrize("schema", ["postgres_schema", "old_postgres_schema"])
def test_who_wants_the_first_few_walks_along_an_index_at_every_size_of_the_table(
    schema: str, request: pytest.FixtureRequest
) -> None:
    """Without statistics the planner goes by the table's pages; at some it would sort all that waits."""
    astray: dict[int, list[str]] = {}
    with sessions(request.getfixturevalue(schema)) as both:
        both.plain.execute(f"SET search_path TO {both.store.database.address.schema}".encode())
        both.plain.execute("ALTER TABLE rowlock_jobs SET (autovacuum_enabled = off)")
        last = 500
        write(both.plain, (1, last), "queued")
        for size in SIZES:
            # A page has room for 55 usual jobs or for four long ones, which are written sooner.
            first, last = last + 1, size * 4 // 55
            write(both.plain, (first, last), "completed", args=f'"{"x" * 1_800}"')
            astray[size] = [
                name
                for name, case in WHILE_IT_GROWS.items()
                for plan in (both.explain(case), both.explain_generic(case))
                if not walks_along(plan, case.line)
            ]
    assert astray == {size: [] for size in SIZES}


@pytest.mark.parametrize("schema", ["postgres_schema", "old_postgres_schema"])
def test_the_oldest_job_of_a_level_is_found_without_a_look_at_the_other_levels(
    schema: str, request: pytest.FixtureRequest
) -> None:
    """The last in line are the first of their level: who walks along the line looks at all before them."""
    with sessions(request.getfixturevalue(schema)) as both:
        both.plain.execute(f"SET search_path TO {both.store.database.address.schema}".encode())
        both.plain.execute(
            "INSERT INTO rowlock_jobs (position, task, queue, priority, args) "
            "SELECT n, 'work', 'q2', CASE WHEN n > 9900 THEN 5 ELSE 0 END, '{}' "
            "FROM generate_series(1, 10000) n"
        )
        for name in ("oldest_queued", "overdue_queued"):
            assert blocks(both.explain(CASES[name], RUN)) < ENOUGH_BLOCKS
            assert blocks(both.explain_generic(CASES[name], RUN)) < ENOUGH_BLOCKS


@pytest.mark.parametrize("schema", ["postgres_schema", "old_postgres_schema"])
@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
def test_a_scan_that_begins_at_marks_does_not_look_at_what_lies_before_them(
    schema: str, newest: bool, request: pytest.FixtureRequest
) -> None:
    """Of 30,000 jobs in two levels, one of each is this worker's."""
    with sessions(request.getfixturevalue(schema)) as both:
        both.plain.execute(f"SET search_path TO {both.store.database.address.schema}".encode())
        mine = (3, 4) if newest else (29997, 29998)
        both.plain.execute(
            "INSERT INTO rowlock_jobs (position, task, queue, priority, args) "
            f"SELECT n, CASE WHEN n IN {mine} THEN 'work' ELSE 'other' END, 'q2', n % 2, '{{}}' "
            "FROM generate_series(1, 30000) n".encode()
        )
        parts = [
            {"level": n % 2, "low": 0 if newest else n - 1, "high": n if newest else 30_000} for n in mine
        ]
        for name in ("LIFO", "LOWEST_NEWEST") if newest else ("FIFO", "PRIORITY"):
            case = Case(f"take at marks by {name}", {"marks": json.dumps(parts), "count": 2})
            with both.plain.transaction(force_rollback=True):
                sql, values = both.sql(case)
                assert both.plain.execute(sql.encode(), values).rowcount == 2
            assert blocks(both.explain(case, RUN)) < ENOUGH_BLOCKS
            assert blocks(both.explain_generic(case, RUN)) < ENOUGH_BLOCKS


def test_the_values_find_something(db: Sessions) -> None:
    """Else the numbers above would be those of statements that look for what is not there."""
    found = {}
    looked_for = ("held", "due_jobs", "unique_holder", "find_by_token", "prune_jobs")
    for name in (*CLAIMS, *FINISHES, *looked_for):
        sql, values = db.sql(CASES[name])
        with db.plain.transaction(force_rollback=True):
            cursor = db.plain.execute(sql.encode(), values)
            rows = cursor.fetchall() if cursor.description else []
            # An exchange always has a row with the facts; each claim is one more.
            found[name] = len(rows) > 1 if CASES[name].request else cursor.rowcount > 0
    assert [name for name, is_there in found.items() if not is_there] == []


@pytest.mark.parametrize("case", AT_THE_DEAD.values(), ids=AT_THE_DEAD)
def test_the_dead_at_the_head_of_a_queue_are_looked_at_once(db: Sessions, case: Case) -> None:
    """40,000 jobs came and went in q5: who comes first marks them in the index, the next steps over them."""
    # Again and again, for a transaction of somebody else may still be old enough to see them.
    eventually(lambda: blocks(db.explain_generic(case, RUN)) < 3 * ENOUGH_BLOCKS, 30)


def test_all_of_this_was_without_statistics(db: Sessions) -> None:
    row = db.plain.execute(
        "SELECT last_analyze, last_autoanalyze, last_vacuum, last_autovacuum FROM pg_stat_all_tables "
        "WHERE relid = to_regclass(%s)",
        [f"{SCHEMA}.rowlock_jobs"],
    ).fetchone()
    assert row == (None, None, None, None)
    count = db.plain.execute("SELECT count(*) FROM pg_stats WHERE schemaname = %s", [SCHEMA]).fetchone()
    assert count == (0,)
