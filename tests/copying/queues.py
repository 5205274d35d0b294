"""What the tests of `rowlock copy` copy: a queue with a job in every state, and how it is compared."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

import duckdb
import msgspec

from rowlock import Fail, Progress, RetryLater, Rowlock
from rowlock.copying.copier import Copier
from rowlock.copying.report import CopyReport
from rowlock.job import LogLine, Report
from rowlock.stores.base import Retention
from tests.stores.steps import run_sql
from tests.stores.steps import table as table_of


class Pair(AbstractContextManager["Pair"]):
    """A queue to copy, and where to."""

    def __init__(self, source_url: str, target_url: str) -> None:
        self.urls = source_url, target_url
        self._owned: list[duckdb.DuckDBPyConnection] = []
        self.open()

    def open(self) -> None:
        """Make the apps. A DuckDB file is opened once for all, which is ten times faster than by turns."""
        self.source, self.target = map(self._app, self.urls)

    def _app(self, url: str) -> Rowlock:
        if not url.startswith("duckdb"):
            return Rowlock(url)
        self._owned.append(duckdb.connect(url.removeprefix("duckdb:///")))
        return Rowlock(connection=self._owned[-1])

    def close(self) -> None:
        """Let another process have the files."""
        self.source.close()
        self.target.close()
        while self._owned:
            self._owned.pop().close()

    def copier(self, **how: Any) -> Copier:
        return Copier(self.source.store, self.target.store, **how)

    def copy(self, **how: Any) -> CopyReport:
        return self.copier(**how).run()

    def __exit__(self, *_: object) -> None:
        self.close()


def fill(app: Rowlock) -> dict[str, int]:
    """A job in every state, with all that can hang on one; returns their ids by what they are."""
    ids = {"pruned": app.enqueue("cut").id}
    app.cancel(ids["pruned"])
    app.store.prune(Retention(0.0, 0.0), 0, 10)
    ids["scheduled"] = app.enqueue("cut", {"n": 1.50}, delay=1000, unique_key="k", meta={"tenant": "ü\n"}).id
    ids["expiring"] = app.enqueue("cut", queue="slow", priority=-7, expires=5000).id
    ids["cancelled"] = app.enqueue("cut").id
    app.cancel(ids["cancelled"])
    poller = app.poller(queues=["work"])
    for name in ("completed", "retried", "failed", "asked", "running"):
        ids[name] = app.enqueue(name, {"deep": [{"x": None}]}, queue="work", priority=9).id
        claim = poller.claim()
        assert claim is not None and claim.id == ids[name]
        lines = [LogLine(at=1.7e9 + n, message=f"line {n}", fields=f'{{"n": {n}}}') for n in range(3)]
        report = Report(id=claim.id, claim=claim.claim, progress=Progress(2, 5, "frames"), lines=lines)
        app.store.report([report])
        if name == "completed":
            claim.complete({"masks": [1, 2.5, "é"]})
        elif name == "retried":  # much later: on a slow machine it must not be claimed before the others
            claim.fail(RetryLater(1000, "no frames\nat all"))
        elif name == "failed":
            claim.fail(Fail("no frames\nat all"))
        elif name == "asked":
            app.cancel(claim.id)
    app.retry(ids["retried"])
    app.pause("slow")
    app.pause("consumer:birdnet")
    app.set_strategy("work", "LIFO")
    # Its heartbeat falls silent, as after kill -9: nobody gives the running jobs back.
    poller._heartbeat.leave(retire=False)
    silence(app)
    return ids


def writing(app: Rowlock) -> Any:
    """A transaction with the driver's own connection in it."""
    return app.store.database.write()


def silence(app: Rowlock) -> None:
    """Let every worker's last beat be long ago."""
    table = table_of(app.store, "rowlock_workers")
    run_sql(app.store, f"UPDATE {table} SET dead_at = started_at, ended = 'silent' WHERE dead_at IS NULL")


def shown(app: Rowlock) -> list[tuple[Any, ...]]:
    """All jobs with what hangs on them, but for the times' digits below the microsecond."""
    return [
        (_rounded(job), [_rounded(one) for one in app.history(job)], [_rounded(one) for one in app.logs(job)])
        for job in app.jobs(limit=10_000)
    ]


def _rounded(record: Any) -> Any:
    times = {
        name: value.replace(microsecond=0) + timedelta(milliseconds=round(value.microsecond / 1000))
        for name, value in msgspec.structs.asdict(record).items()
        if isinstance(value, datetime)
    }
    return msgspec.structs.replace(record, **times)
