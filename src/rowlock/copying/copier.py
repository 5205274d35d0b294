"""Moves a queue: finished jobs while it is in use, then it is closed, and what is left follows.

Every batch is one transaction of the target, which also says how far the copy is: there it goes on if it was
interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import msgspec

from rowlock.copying.arriving import JobRow, cancel_for_key, given_back, wants_key
from rowlock.copying.checks import check, living_workers, refuse_living_workers, side_of
from rowlock.copying.numbers import Range
from rowlock.copying.progress import MOST_CONFLICTS_NAMED, Conflict, CopyState
from rowlock.copying.report import WHOLE, CopyProgress, CopyReport, compared, counts_in
from rowlock.errors import DataRefused, StoreBusy
from rowlock.job import State
from rowlock.options import CONSUMERS
from rowlock.stores.sql.copying import JOB_COLUMNS, MOVED, MOVED_TO, as_json, key_of
from rowlock.stores.sql.finishing import policy_of
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.store import Store

PAGE = 2_000  # jobs that are looked at together
BATCH_BYTES = 4_000_000  # of arguments, results, errors and log lines that are held in memory together
_TRIES = 10  # of a batch of which a unique key is taken meanwhile, and of a lock that somebody holds
_PAUSE_SECONDS = 0.2
_HANGING = ("history", "logs", "progress")  # the tables whose rows belong to jobs


class Copier:
    """One copy from one store to another."""

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        merge: bool = False,
        keep: bool = False,
        with_workers_alive: bool = False,
        tell: Callable[[CopyProgress], None] = lambda progress: None,
    ) -> None:
        self._source, self._target = side_of(source), side_of(target)
        self._merge, self._keep, self._with_workers_alive = merge, keep, with_workers_alive
        self._tell = tell
        self._snapshot: Session | None = None  # of the source, while it is in use beside the copy
        self._policies: dict[str | None, dict[str, Any]] = {}  # worker -> what its row says about its tasks
        self._done = self._total = 0
        self._phase = ""

    def run(self) -> CopyReport:
        """Copy; raises before anything is written if that may not be done."""
        began = time.monotonic()
        state = check(
            self._source,
            self._target,
            merge=self._merge,
            keep=self._keep,
            with_workers_alive=self._with_workers_alive,
        )
        resumed = state is not None
        if state is None:
            self._begin()
        else:
            self._state = state
        with self._source.reading() as db:
            self._total = sum(counts_in(db, WHOLE).values())
        if not self._state.done:
            self._copy_finished()
            if not self._keep:
                self._close("moving")
        with self._source.snapshot() if self._keep else nullcontext() as self._snapshot:
            if not self._state.done:
                self._copy_rest()
            report = self._report(began, resumed)
        self._snapshot = None
        if report.is_good and not self._state.done:
            self._state.done = True
            with self._target.writing() as tx:
                self._save(tx)
        if self._keep:
            self.open_again()
        elif report.is_good:
            self._close("moved")
        return report

    # -- the steps -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Create the target's tables if need be, and reserve numbers for the jobs that are there now."""
        self._target.store.open(create=True)
        self._state = CopyState(
            source=self._source.store.install_id(), address=self._source.address, started_at=time.time()
        )
        self._reserve()

    def _reserve(self) -> None:
        """Give every number that the source has drawn by now a number of the target."""
        with self._source.reading() as db:
            last = db.row("last_number")[0]
        with self._target.writing() as tx:
            numbers = self._state.numbers
            if last > numbers.last:
                empty = not numbers.ranges and tx.row("lowest_id")[0] is None
                drawn = self._target.lock_numbers(tx)
                # From 1 on: a job with a low number may not be committed yet.
                reserved = numbers.extend(numbers.last + 1, last, drawn, keep=empty)
                self._target.set_last_number(tx, reserved)
            self._save(tx)

    def _copy_finished(self) -> None:
        """What has ended changes no more, or hardly: it is copied while the source is still in use."""
        self._phase = "finished jobs"
        for one in self._state.ranges:
            for page in self._pages("copy_finished_page", one, self._state.finished_up_to):
                with self._together():
                    self._copy([job for job, _, _ in page], "finished_up_to", page[-1][0])

    def _copy_rest(self) -> None:
        """All that is missing on the target, or is not as it was when it was copied."""
        self._phase = "the rest"
        self._done = 0
        self._reserve()
        self._copy_settings()
        for one in self._state.ranges:
            beyond = max(one.first - 1, self._state.copied_up_to)
            for page in self._pages("copy_page", one, beyond):
                last = page[-1][0] if len(page) == PAGE else one.last
                with self._together():
                    self._reconcile(page, beyond, last, one.shift)
                beyond = last
            if beyond < one.last:
                self._reconcile([], beyond, one.last, one.shift)

    def _reconcile(self, page: Sequence[Any], beyond: int, last: int, shift: int) -> None:
        """Make the target's jobs between two ids those of the source."""
        with self._target.reading() as db:
            found = db.rows("copy_page", beyond=beyond + shift, before=last + shift + 1, most=last - beyond)
            there = {job: (state, claim) for job, state, claim in found}
        wanted = {job + shift: (state, claim) for job, state, claim in page}
        stale = [job for job, look in there.items() if wanted.get(job) != look]
        missing = [job - shift for job, look in wanted.items() if there.get(job) != look]
        self._done += len(wanted) - len(missing)
        if stale:  # by itself: DuckDB cannot delete a key and write it again in one transaction
            with self._target.writing() as tx:
                for statement in ("delete_jobs", "prune_history", "prune_logs", "prune_progress"):
                    tx.run(statement, ids=as_json(stale))
        self._copy(missing, "copied_up_to", last)

    def _copy_settings(self) -> None:
        """A paused queue has to be so before its jobs arrive; consumers stay where their tables are."""
        with self._reads() as db:
            settings = [row for row in db.rows("copy_queues") if not row[0].startswith(CONSUMERS)]
        with self._target.writing() as tx:
            there = {row[0]: row for row in tx.rows("copy_queues")}
            self._target.load(tx, "queues", [row for row in settings if row[0] not in there])
            if not self._state.copied_up_to:
                differ = [row[0] for row in settings if row[0] in there and not _same(row, there[row[0]])]
                self._state.settings_kept = sorted({*self._state.settings_kept, *differ})
            self._save(tx)

    def _close(self, how: str) -> None:
        """Refuse every change of the source's jobs from now on, and say in it where they are."""
        word = "is being moved" if how == "moving" else "has moved"
        advice = (
            "if no `rowlock copy` is at work, run it again: it goes on where it was"
            if how == "moving"
            else "use that database"
        )
        sentence = f"the queue in {self._source.address} {word} to {self._target.address}: {advice}"
        for attempt in range(_TRIES):
            try:
                with self._source.writing() as tx:
                    frozen = tx.row("meta_value", key=MOVED) is not None
                    tx.run("write_meta", key=MOVED, value=sentence)
                    tx.run("write_meta", key=MOVED_TO, value=self._target.store.install_id())
                    tx.run("write_meta", key=key_of(self._state.source), value=how)
                    if not frozen:
                        self._source.freeze(tx)
                        # Asked again now that none of them can claim: one may have started since.
                        if not self._with_workers_alive:
                            refuse_living_workers(self._source)
                        tx.run("end_job_workers")
                return
            except StoreBusy:  # somebody has written and not committed yet
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def open_again(self) -> None:
        """Let the source be used again, if a copy had closed it."""
        with self._source.writing() as tx:
            if tx.row("meta_value", key=MOVED) is None:
                return
            self._source.thaw(tx)
            for key in (MOVED, MOVED_TO, key_of(self._source.store.install_id())):
                tx.run("delete_meta", key=key)

    # -- batches ---------------------------------------------------------------------------------

    def _pages(self, name: str, one: Range, beyond: int) -> Iterator[list[tuple[int, str, int]]]:
        beyond = max(one.first - 1, beyond)
        while beyond < one.last:
            with self._reads() as db:
                page = db.rows(name, beyond=beyond, before=one.last + 1, most=PAGE)
            if not page:
                return
            yield page
            beyond = page[-1][0]

    def _copy(self, ids: Sequence[int], mark: Literal["finished_up_to", "copied_up_to"], up_to: int) -> None:
        """Write these jobs with all that hangs on them, as many at once as memory allows.

        What precedes the next batch is settled, and with the last one all up to `up_to`: so the mark says.
        """
        batches = self._batches(ids)
        for batch in batches:
            setattr(self._state, mark, up_to if batch is batches[-1] else batch[-1])
            self._write(batch, ahead=mark == "finished_up_to")
            self._done += len(batch)
            self._tell(CopyProgress(self._phase, self._done, self._total))

    def _batches(self, ids: Sequence[int]) -> list[list[int]]:
        if not ids:
            return [[]]
        with self._reads() as db:
            sizes = dict(db.rows("copy_sizes", ids=as_json(ids)))
        batches: list[list[int]] = [[]]
        room = BATCH_BYTES
        for id in ids:
            room -= sizes.get(id, 0)
            if room < 0 and batches[-1]:
                batches.append([])
                room = BATCH_BYTES - sizes.get(id, 0)
            batches[-1].append(id)
        return batches

    def _write(self, ids: Sequence[int], ahead: bool) -> None:
        jobs: list[JobRow] = []
        hanging: dict[str, list[Any]] = {}
        if ids:
            with self._reads() as db:
                rows = self._source.read(db, "jobs", ids)
                jobs = [dict(zip(JOB_COLUMNS, row, strict=True)) for row in rows]
                hanging = {table: self._source.read(db, table, ids) for table in _HANGING}
                self._learn_policies(db, jobs)
        if ahead:  # a retry since the page was read: it is left for later
            last = self._state.numbers.last
            jobs = [job for job in jobs if State(job["state"]).final and job["position"] <= last]
            there = {job["id"] for job in jobs}
            hanging = {table: [row for row in rows if row[0] in there] for table, rows in hanging.items()}
        before = msgspec.json.encode(self._state)
        for attempt in range(_TRIES):
            try:
                with self._target.writing() as tx:
                    if ids:
                        self._insert(tx, jobs, hanging)
                    self._save(tx)
                return
            except DataRefused:
                # A unique key was taken between the look and the write: the next look sees it.
                if attempt == _TRIES - 1:
                    raise
                self._state = msgspec.json.decode(before, type=CopyState)

    def _insert(self, tx: Session, originals: Sequence[JobRow], hanging: dict[str, list[Any]]) -> None:
        now, number, lines = time.time(), self._state.numbers, []
        jobs: list[JobRow] = [
            {**job, "id": number(job["id"]), "position": number(job["position"])} for job in originals
        ]
        for job in jobs:
            if job["state"] == State.RUNNING:
                policy = policy_of(self._policies.get(job["claimed_by"], {}), job["task"])
                lines.append(given_back(job, policy, now, self._source.address))
                self._state.arrived(State.RUNNING.value, job["state"])
                self._state.released += 1
        held = self._held_keys(tx, jobs)
        for job, original in zip(jobs, originals, strict=True):
            holder = held.get((job["task"], job["unique_key"]))
            if holder is not None and wants_key(job):
                self._state.arrived(job["state"], State.CANCELLED.value)
                lines.append(cancel_for_key(job, holder, now))
                self._state.conflicts_total += 1
                if len(self._state.conflicts) < MOST_CONFLICTS_NAMED:
                    named = Conflict(original["id"], job["id"], job["task"], job["unique_key"], holder)
                    self._state.conflicts.append(named)
        self._target.load(tx, "jobs", [list(job.values()) for job in jobs])
        for table, rows in hanging.items():
            arrived = [[number(job), *others] for job, *others in rows]
            self._target.load(tx, table, arrived + lines if table == "history" else arrived)
        for queue in {job["queue"] for job in jobs if job["state"] == State.QUEUED}:
            self._target.store.database.hint(tx, [queue])

    def _held_keys(self, tx: Session, jobs: Sequence[JobRow]) -> dict[tuple[str, str], int]:
        """Of the unique keys that these jobs want: which an unfinished job of the target holds, and who."""
        keys: dict[str, list[str]] = {}
        for job in jobs:
            if wants_key(job):
                keys.setdefault(job["task"], []).append(job["unique_key"])
        return {
            (task, key): holder
            for task, wanted in keys.items()
            for key, holder in tx.rows("key_holders", task=task, keys=as_json(wanted))
        }

    def _learn_policies(self, db: Session, jobs: Sequence[JobRow]) -> None:
        """What the workers that run these jobs said about their tasks: some may run only once."""
        for worker in {job["claimed_by"] for job in jobs if job["state"] == State.RUNNING}:
            if worker not in self._policies:
                known = db.row("tasks_of", worker=worker)
                self._policies[worker] = msgspec.json.decode(known[0]) if known else {}

    def _save(self, tx: Session) -> None:
        tx.run("write_meta", key=key_of(self._state.source), value=msgspec.json.encode(self._state).decode())

    def _report(self, began: float, resumed: bool) -> CopyReport:
        with self._reads() as here, self._target.reading() as there:
            counts = compared(here, there, self._state)
        state = self._state
        return CopyReport(
            source=self._source.address,
            target=self._target.address,
            moved=not self._keep,
            resumed=resumed,
            ids_kept=state.numbers.kept,
            ids=state.ranges,
            counts=counts,
            agrees=all(one.agrees for one in counts),
            target_in_use=bool(living_workers(self._target)),
            released=state.released,
            conflicts=state.conflicts,
            conflicts_total=state.conflicts_total,
            settings_kept=state.settings_kept,
            seconds=time.monotonic() - began,
        )

    @contextmanager
    def _together(self) -> Iterator[None]:
        """One turn with each file for the whole block, where a database is used by turns."""
        with self._source.store.database.together(), self._target.store.database.together():
            yield

    def _reads(self) -> AbstractContextManager[Session]:
        return self._source.reading() if self._snapshot is None else nullcontext(self._snapshot)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two rows of settings say the same: paused or not, and in which order."""
    return (one[1] is None, one[3]) == (other[1] is None, other[3])
