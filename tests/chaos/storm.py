"""The harness of a storm: real processes, faults drawn from a seed, and the verdict at the end.

Which faults, when, and what else must hold is the scenario's to say.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rowlock import Rowlock
from tests.chaos.database import make_effects, rows
from tests.chaos.history import EventLog, Sampler, Verdict, check, gather
from tests.chaos.work import Settings
from tests.eventually import eventually

# Read before a fixture hides the environment from the tests.
_SEED = os.environ.get("ROWLOCK_CHAOS_SEED")
_JOBS = os.environ.get("ROWLOCK_CHAOS_JOBS")
_ROOT = Path(__file__).parents[2]
_PACE = 0.02


def chosen_seed() -> int:
    """The seed from ROWLOCK_CHAOS_SEED, to see a storm again; else a new one."""
    return int(_SEED) if _SEED else random.SystemRandom().randrange(1_000_000)


def chosen_size(usual: int) -> int:
    """How many jobs (or faults) a long storm has: ROWLOCK_CHAOS_JOBS, or what is usual for it."""
    return int(_JOBS) if _JOBS else usual


def say(line: str) -> None:
    """Print a line of figures, or the seed; `make chaos` shows it."""
    print(line, flush=True)  # noqa: T201


@dataclass
class Member:
    """One process of the storm."""

    name: str
    pid: int
    code: int | None = None  # set when it ended; negative: by that signal
    frozen: bool = False


class Storm:
    """Workers and producers on one queue, and everything that happens to them."""

    def __init__(
        self, url: str, folder: Path, *, lease: float = 2.0, concurrency: int = 2, seed: int | None = None
    ) -> None:
        self.seed = chosen_seed() if seed is None else seed
        self.random = random.Random(self.seed)
        self.folder = folder
        self.lease = lease
        self.app = Rowlock(url, lease=lease)
        self.app.store.open()
        make_effects(url)
        self.log = EventLog(folder / "events")
        self.sampler = Sampler(self.app, self.seed)
        self.members: dict[str, Member] = {}
        self.name = f"{Path(os.environ.get('PYTEST_CURRENT_TEST', 'storm').split(' ')[0]).name}"
        self._settings = Settings(url, str(folder), lease, concurrency)
        self._changed = threading.Condition()
        self._ready = False
        self._numbers = 0
        say(f"\n{self.name}: ROWLOCK_CHAOS_SEED={self.seed}")

    # -- its life --------------------------------------------------------------------------------

    def __enter__(self) -> Storm:
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.work", self._settings.dump()],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for(lambda: self._ready, "the nursery did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members.values():
            self._send(member, signal.SIGKILL)
        assert self._nursery.stdin and self._nursery.stdout
        self._nursery.stdin.close()
        self._reader.join()
        self._nursery.stdout.close()
        self._nursery.wait()
        self.app.close()

    def _read(self) -> None:
        assert self._nursery.stdout
        for line in self._nursery.stdout:
            news = json.loads(line)
            with self._changed:
                if "began" in news:
                    self.members[news["began"]] = Member(news["began"], news["pid"])
                elif "ended" in news:
                    for member in self.members.values():
                        if member.pid == news["ended"] and member.code is None:
                            member.code = news["code"]
                else:
                    self._ready = True
                self._changed.notify_all()

    def _wait_for(self, true: Callable[[], Any], otherwise: str, timeout: float = 60.0) -> None:
        with self._changed:
            if not self._changed.wait_for(true, timeout):
                raise AssertionError(otherwise)

    # -- processes -------------------------------------------------------------------------------

    def _fork(self, role: str, **told: Any) -> Member:
        self._numbers += 1
        name = f"{role}-{self._numbers}"
        assert self._nursery.stdin
        self._nursery.stdin.write(json.dumps({"role": role, "name": name, **told}) + "\n")
        self._nursery.stdin.flush()
        self._wait_for(lambda: name in self.members, f"{name} did not start")
        return self.members[name]

    def start_worker(self, newer: bool = True) -> Member:
        """Start a worker; it may take a moment to register."""
        return self._fork("work", newer=newer)

    def start_workers(self, count: int) -> list[Member]:
        """Start workers and wait until all of them are registered."""
        started = [self.start_worker() for _ in range(count)]
        eventually(lambda: {member.name for member in started} <= self.registered(), timeout=60)
        return started

    def registered(self) -> set[str]:
        """The ids of workers that have come as far as that, dead ones too."""
        return {worker for (worker,) in rows(self.app.store.url, "SELECT id FROM rowlock_workers")}

    def start_producer(self, count: int, seconds: float = 0.005, faults: bool = True) -> Member:
        """Start a process that enqueues so many jobs and then ends."""
        seed = self.random.randrange(1 << 30)
        return self._fork("produce", count=count, seed=seed, seconds=seconds, faults=faults)

    def living(self, role: str = "work") -> list[Member]:
        """The processes of a role that have not ended and are not frozen, oldest first."""
        return [
            member
            for member in list(self.members.values())
            if member.name.startswith(role) and member.code is None and not member.frozen
        ]

    def _send(self, member: Member, number: signal.Signals) -> bool:
        if member.code is not None:
            return False
        try:
            os.kill(member.pid, number)
        except ProcessLookupError:
            return False
        return True

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, member: Member) -> None:
        """End it as `kill -9` does, and wait until it is gone."""
        self._send(member, signal.SIGKILL)
        self.wait_for_end(member)

    def freeze(self, member: Member) -> None:
        """Stop it where it is."""
        member.frozen = self._send(member, signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        """Let it go on."""
        self._send(member, signal.SIGCONT)
        member.frozen = False

    def terminate(self, member: Member) -> None:
        """Ask it to end in good order."""
        self._send(member, signal.SIGTERM)

    def wait_for_end(self, member: Member, timeout: float = 60.0) -> int:
        """Wait for it to be gone; returns its exit code, negative for a signal."""
        self._wait_for(lambda: member.code is not None, f"{member.name} does not end", timeout)
        assert member.code is not None
        return member.code

    # -- jobs ------------------------------------------------------------------------------------

    def acknowledged(self) -> list[int]:
        """The ids that producers were told."""
        file = self.folder / "acknowledged"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def unfinished(self) -> int:
        """How many jobs have not ended yet."""
        return self._count("scheduled", "queued", "running")

    def running(self) -> int:
        """How many jobs somebody holds."""
        return self._count("running")

    def _count(self, *states: str) -> int:
        named = ", ".join(f"'{state}'" for state in states)
        sql = f"SELECT count(*) FROM rowlock_jobs WHERE state IN ({named})"
        return int(rows(self.app.store.url, sql)[0][0])

    def pass_time(self, seconds: float) -> None:
        """Let the storm go on for a while, and look at some jobs meanwhile."""
        until = time.monotonic() + seconds
        self.sampler.look(self.acknowledged(), most=10)
        threading.Event().wait(max(0.0, until - time.monotonic()))

    def drain(self, timeout: float = 60.0) -> None:
        """Wait until every job has ended, while the sampler looks on."""

        def done() -> bool:
            self.sampler.look(self.acknowledged(), most=5)
            return not self.unfinished()

        eventually(done, timeout, f"{self.unfinished()} jobs do not end")

    def verdict(self, extra: list[int] | None = None) -> Verdict:
        """What the checker says of it all; `extra` are jobs that the test enqueued itself."""
        return check(gather(self.app, [*self.acknowledged(), *(extra or [])], self.log, self.sampler))

    def recovery(self) -> list[tuple[float, float]]:
        """For each rescued claim: seconds from its worker's last beat to its rescue, to the next claim."""
        beats = {worker.id: worker.beat_at for worker in self.app.store.workers()}
        measured = []
        for (job,) in rows(
            self.app.store.url, "SELECT DISTINCT job_id FROM rowlock_history WHERE event = 'rescued'"
        ):
            history = self.app.history(job)
            found = self.app.job(job)
            taken = {entry.claim: entry.started_at for entry in history}
            taken[found.claim] = found.claimed_at or taken.get(found.claim)
            for entry in history:
                again = taken.get(entry.claim + 1)
                if entry.event == "rescued" and entry.worker in beats and again is not None:
                    last_beat = beats[entry.worker]
                    measured.append(
                        ((entry.at - last_beat).total_seconds(), (again - last_beat).total_seconds())
                    )
        return measured


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
