"""Deletes old finished jobs and what was kept about them, a bounded piece at a time."""

from __future__ import annotations

from rowlock.codec import json_text
from rowlock.job import State
from rowlock.stores.source import Retention
from rowlock.stores.sql.database import Database

# In one transaction; 250,000, the lines of 500 talkative jobs, held SQLite's lock for 7.7 s.
_SIDE_ROWS = 2_000


def prune(
    database: Database, keep: Retention, after: int, most: int, now: float | None = None
) -> tuple[int, int]:
    """Delete old finished jobs of one page of ids; returns (deleted, last id looked at; 0: the end)."""
    with database.read(now) as db:
        page = db.rows("prune_page", beyond=after, most=most)
        moment = db.now
        newest = moment - min(keep.completed, keep.failed)
        # Ids grow with created_at: from the first row that is too young on, every row is.
        old = [row for row in page if row[2] <= newest]
        limits = {
            State.COMPLETED: keep.completed,
            State.FAILED: keep.failed,
            State.CANCELLED: keep.failed,
        }
        doomed = [row[0] for row in old if row[1] in limits and row[3] <= moment - limits[row[1]]]
        lines = dict(db.rows("count_side_rows", ids=json_text(doomed))) if doomed else {}
    batch = _first_few(doomed, lines)
    deleted: list[int] = []
    if batch:
        ages = {"keep_completed": keep.completed, "keep_failed": keep.failed}
        with database.write(now) as tx:
            deleted = [row[0] for row in tx.rows("prune_jobs", ids=json_text(batch), **ages)]
            for side_table in ("prune_history", "prune_logs", "prune_progress"):
                tx.run(side_table, ids=json_text(deleted))
    if len(batch) < len(doomed):
        return len(deleted), batch[-1]
    more = len(page) == most and page[-1][2] <= newest
    return len(deleted), (page[-1][0] if more else 0)


def prune_records(database: Database, age: float, now: float | None = None) -> None:
    """Delete some rows of workers that ended, and of minutes that passed, longer than `age` ago."""
    with database.write(now) as tx:
        tx.run("prune_workers", age=age, most=_SIDE_ROWS)
        tx.run("prune_minutes", minute=int((tx.now - age) // 60), most=_SIDE_ROWS)


def _first_few(jobs: list[int], lines: dict[int, int]) -> list[int]:
    """As many of the jobs as can be deleted at once, and one at least: each takes its log lines along."""
    room = _SIDE_ROWS
    for index, job in enumerate(jobs):
        room -= lines.get(job, 0)
        if room < 0:
            return jobs[: max(1, index)]
    return jobs
