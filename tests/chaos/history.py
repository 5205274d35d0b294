"""The history checker: what a storm left behind, against what the queue promises.

Pure: `gather` reads, `check` judges. A lease cannot stop a lost claim from running on, so two runs of one
job may overlap; what may not is that both are believed. A claim is *accepted* when the outcome of its own
run was written, and *taken back* when somebody else ended it (a rescue, a shutdown, a timeout). Tasks
return their claim number, so that a result tells who wrote it.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rowlock import Rowlock
from rowlock.job import Job, State
from tests.chaos.database import effects_table, rows

_ACCEPTED = frozenset({"completed", "retry", "failed", "cancelled"})
_TAKEN_BACK = frozenset({"rescued", "released"})
_BY_OTHERS = frozenset({"timeout", "worker_died", "worker_stopped"})  # an ending that was not the run's own
_NO_CLAIM = frozenset({"operator", "expired", "overdue"})  # lines about a job that nobody may hold


# -- what tasks say ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One line of the log: a run started or ended; `at` is CLOCK_MONOTONIC, one for the machine."""

    job: int
    claim: int
    what: str
    at: float
    worker: str = ""
    pid: int = 0


class EventLog:
    """A file that all runs append to; one write per line, so that no kill can tear one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, job: int, claim: int, what: str, worker: str = "") -> None:
        """Append one event."""
        line = {
            "job": job,
            "claim": claim,
            "what": what,
            "at": time.monotonic(),
            "worker": worker,
            "pid": os.getpid(),
        }
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)

    def read(self) -> list[Event]:
        """All events, in the order in which they were written."""
        if not self.path.exists():
            return []
        return [Event(**json.loads(line)) for line in self.path.read_text().splitlines()]


# -- what the store says -------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What the checker needs of a job."""

    state: str
    claim: int
    failures: int = 0
    task: str = "apply"
    error_kind: str | None = None
    result: Any = None  # a number is the claim that wrote it
    finished_at: datetime | None = None

    @classmethod
    def of(cls, job: Job) -> Row:
        return cls(
            job.state.value,
            job.claim,
            job.failures,
            job.task,
            job.error_kind,
            job.result,
            job.finished_at,
        )

    @property
    def final(self) -> bool:
        return State(self.state).final


@dataclass(frozen=True)
class Ending:
    """One line of a job's timeline: how a claim ended."""

    job: int
    claim: int
    event: str
    error_kind: str | None = None

    @property
    def accepted(self) -> bool:
        return self.event in _ACCEPTED and self.error_kind not in _BY_OTHERS


@dataclass(frozen=True)
class Sighting:
    """A job as it was seen while the storm went on."""

    job: int
    state: str
    claim: int
    finished_at: datetime | None = None


class Sampler:
    """Looks at jobs during the run; what it saw is compared with what comes later."""

    def __init__(self, app: Rowlock, seed: int = 0) -> None:
        self._app = app
        self._random = random.Random(seed)
        self.sightings: list[Sighting] = []

    def look(self, jobs: Sequence[int], most: int = 50) -> None:
        """Look at some of these jobs, chosen at random."""
        for job in self._random.sample(jobs, min(most, len(jobs))):
            found = self._app.store.get(job)
            if found is not None:
                self.sightings.append(Sighting(job, found.state.value, found.claim, found.finished_at))


@dataclass(frozen=True)
class History:
    """Everything that is known about a run."""

    acknowledged: Sequence[int]
    jobs: Mapping[int, Row]
    events: Sequence[Event] = ()
    endings: Sequence[Ending] = ()
    effects: Sequence[tuple[int, int]] = ()
    sightings: Sequence[Sighting] = ()
    effectful: Collection[str] = ("apply",)  # tasks that write one effect
    silent: Collection[str] = ()  # tasks that write no events


def gather(
    app: Rowlock,
    acknowledged: Iterable[int],
    log: EventLog,
    sampler: Sampler | None = None,
    effectful: Collection[str] = ("apply",),
    silent: Collection[str] = (),
) -> History:
    """Read the store, its effects and the log after the storm."""
    url = app.store.url
    return History(
        acknowledged=list(acknowledged),
        jobs={job.id: Row.of(job) for job in _all_jobs(app)},
        events=log.read(),
        endings=[
            Ending(*line)
            for line in rows(url, "SELECT job_id, claim, event, error_kind FROM rowlock_history ORDER BY id")
        ],
        effects=[(job, claim) for job, claim in rows(url, f"SELECT job, claim FROM {effects_table(url)}")],
        sightings=list(sampler.sightings) if sampler else [],
        effectful=effectful,
        silent=silent,
    )


def _all_jobs(app: Rowlock) -> Iterable[Job]:
    page = app.jobs(limit=10_000)
    yield from page
    while page.cursor:
        page = app.jobs(limit=10_000, cursor=page.cursor)
        yield from page


# -- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breach:
    """One promise that was broken, by its kind, with the job it was broken to."""

    kind: str
    job: int
    text: str

    def __str__(self) -> str:
        return f"job {self.job}: {self.kind}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """What the checker found, and how much there was to find it in."""

    breaches: list[Breach]
    states: Counter[str]
    claims: int  # all that were made
    taken_back: int  # of these
    in_vain: int  # runs that came to their end and were not believed
    charged: int  # attempts, over all jobs
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def lost(self) -> int:
        return self.kinds["lost"] + self.kinds["unfinished"]

    @property
    def doubled(self) -> int:
        return self.kinds["effect twice"]

    @property
    def stale(self) -> int:
        return self.kinds["stale write"] + self.kinds["ended twice"] + self.kinds["overlap"]

    def must_be_clean(self) -> None:
        """Fail, with the first breaches, if there are any."""
        if self.breaches:
            first = "\n".join(f"  {breach}" for breach in self.breaches[:20])
            raise AssertionError(f"{len(self.breaches)} breaches: {dict(self.kinds)}\n{first}")

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return (
            f"{states}; lost {self.lost}; effects applied twice {self.doubled}; "
            f"stale writes accepted {self.stale}; claims {self.claims}, taken back {self.taken_back}, "
            f"ended in vain {self.in_vain}; attempts charged {self.charged}; breaches {len(self.breaches)}"
        )


def check(history: History) -> Verdict:
    """Hold a history against every promise."""
    breaches = [breach for rule in _RULES for breach in rule(history)]
    taken_back = {(end.job, end.claim) for end in history.endings if _ends_a_claim(end) and not end.accepted}
    ended = {(event.job, event.claim) for event in history.events if event.what == "end"}
    return Verdict(
        breaches=breaches,
        states=Counter(row.state for row in history.jobs.values()),
        claims=sum(row.claim for row in history.jobs.values()),
        taken_back=len(taken_back),
        in_vain=len(taken_back & ended),
        charged=sum(row.failures for row in history.jobs.values()),
        kinds=Counter(breach.kind for breach in breaches),
    )


def _ends_a_claim(end: Ending) -> bool:
    return end.event in _ACCEPTED | _TAKEN_BACK and end.error_kind not in _NO_CLAIM


def _acknowledged_jobs_are_there(history: History) -> Iterable[Breach]:
    for job, times in Counter(history.acknowledged).items():
        if times > 1:
            yield Breach("id twice", job, f"{times} enqueues were given this id")
        if job not in history.jobs:
            yield Breach("lost", job, "its enqueue was acknowledged, and it is not there")


def _all_jobs_have_ended(history: History) -> Iterable[Breach]:
    for job, row in history.jobs.items():
        if not row.final:
            yield Breach("unfinished", job, f"it is still {row.state}, under claim {row.claim}")


def _effects_are_exactly_once(history: History) -> Iterable[Breach]:
    applied: dict[int, list[int]] = defaultdict(list)
    for job, claim in history.effects:
        applied[job].append(claim)
    for job, claims in applied.items():
        row = history.jobs.get(job)
        if row is None or row.task not in history.effectful:
            yield Breach("stray effect", job, f"of claims {claims}, by nobody who should have")
        elif row.state != State.COMPLETED:
            yield Breach("stray effect", job, f"of claims {claims}, and it is {row.state}")
        elif len(claims) > 1:
            yield Breach("effect twice", job, f"of claims {sorted(claims)}")
        elif claims[0] != row.claim:
            yield Breach("stale write", job, f"the effect is of claim {claims[0]}, completed was {row.claim}")
    for job, row in history.jobs.items():
        if row.task in history.effectful and row.state == State.COMPLETED and job not in applied:
            yield Breach("effect missing", job, f"completed under claim {row.claim} without its effect")


def _results_are_of_the_last_claim(history: History) -> Iterable[Breach]:
    for job, row in history.jobs.items():
        if row.state == State.COMPLETED and isinstance(row.result, int) and row.result != row.claim:
            yield Breach(
                "stale write", job, f"the result is of claim {row.result}, completed was {row.claim}"
            )


def _claims_end_exactly_once(history: History) -> Iterable[Breach]:
    endings: dict[tuple[int, int], list[str]] = defaultdict(list)
    for end in filter(_ends_a_claim, history.endings):
        endings[end.job, end.claim].append(end.event)
    for (job, claim), events in endings.items():
        row = history.jobs.get(job)
        if len(events) > 1:
            yield Breach("ended twice", job, f"claim {claim} ended as {', '.join(events)}")
        if row is not None and claim > row.claim:
            yield Breach("unknown claim", job, f"claim {claim} ended, and the job is at {row.claim}")
        if row is not None and row.final and claim < row.claim and events[-1] in {"completed", "failed"}:
            yield Breach("not final", job, f"claim {claim} ended as {events[-1]}, then came {row.claim}")
    for job, row in history.jobs.items():
        # A first-try completion leaves no line; a claim that is still held has no end yet.
        for claim in range(1, row.claim + int(row.final and not _first_try(row))):
            if (job, claim) not in endings:
                yield Breach("never ended", job, f"nothing tells how claim {claim} of {row.claim} ended")


def _first_try(row: Row) -> bool:
    return row.claim == 1 and row.state == State.COMPLETED


def _claims_start_once_and_in_order(history: History) -> Iterable[Breach]:
    started: set[tuple[int, int]] = set()
    highest: dict[int, int] = defaultdict(int)
    back = {(end.job, end.claim) for end in history.endings if _ends_a_claim(end) and not end.accepted}
    for event in sorted(history.events, key=lambda event: event.at):
        if event.what != "start":
            continue
        job, claim = event.job, event.claim
        row = history.jobs.get(job)
        if row is None or claim > row.claim:
            yield Breach("unknown claim", job, f"claim {claim} started, the store knows {row}")
        if (job, claim) in started:
            yield Breach("started twice", job, f"claim {claim}")
        # Frozen between the claim and the run, a worker starts late what was taken back meanwhile.
        if claim < highest[job] and (job, claim) not in back:
            yield Breach("claim went back", job, f"claim {claim} started after claim {highest[job]}")
        started.add((job, claim))
        highest[job] = max(highest[job], claim)
    for job, row in history.jobs.items():
        if (
            row.state == State.COMPLETED
            and row.task not in history.silent
            and (job, row.claim) not in started
        ):
            yield Breach("never started", job, f"completed under claim {row.claim}, which nobody ran")


def _valid_claims_do_not_overlap(history: History) -> Iterable[Breach]:
    """An accepted run ended before any later claim of its job began: at no time were two of them valid."""
    accepted = {(end.job, end.claim) for end in history.endings if _ends_a_claim(end) and end.accepted}
    accepted |= {(job, 1) for job, row in history.jobs.items() if _first_try(row)}
    ended = {(event.job, event.claim): event.at for event in history.events if event.what == "end"}
    for event in history.events:
        if event.what != "start":
            continue
        for claim in range(1, event.claim):
            end = ended.get((event.job, claim))
            if (event.job, claim) in accepted and end is not None and event.at < end:
                late = f"{end - event.at:.3f} s"
                yield Breach("overlap", event.job, f"claim {event.claim} began {late} before {claim} ended")


def _final_states_stay(history: History) -> Iterable[Breach]:
    seen: dict[int, Sighting] = {}
    last = [Sighting(job, row.state, row.claim, row.finished_at) for job, row in history.jobs.items()]
    for now in [*history.sightings, *last]:
        before = seen.get(now.job)
        if before is not None and State(before.state).final and before != now:
            was, became = (f"{one.state} ({one.claim}, {one.finished_at})" for one in (before, now))
            yield Breach("not final", now.job, f"{was} became {became}")
        elif before is not None and now.claim < before.claim:
            yield Breach("claim went back", now.job, f"from {before.claim} to {now.claim}")
        seen[now.job] = now
    for job in seen.keys() - history.jobs.keys():
        yield Breach("lost", job, "it was seen, and it is not there any more")


_RULES = (
    _acknowledged_jobs_are_there,
    _all_jobs_have_ended,
    _effects_are_exactly_once,
    _results_are_of_the_last_claim,
    _claims_end_exactly_once,
    _claims_start_once_and_in_order,
    _valid_claims_do_not_overlap,
    _final_states_stay,
)
