"""Wall clocks that jump, by an hour and over both changes of summer time: nothing early, twice or never.

On SQLite all processes share the machine's clock, and it is moved under them. On PostgreSQL every worker has
another, and none of them matters.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from rowlock import Rowlock
from rowlock.stores.address import store_for
from tests.chaos.clockwork import Clock, Clocked, why_not
from tests.chaos.database import make_effects, rows
from tests.chaos.history import EventLog, Verdict, check, gather
from tests.chaos.storm import chosen_seed, chosen_size, say
from tests.chaos.work import Settings
from tests.eventually import eventually

HOUR = 3600.0
LEASE = 5.0  # a busy machine may keep a living worker from beating for a second or two
BERLIN = "Europe/Berlin"


class Fleet:
    """Workers by clocks that jump, and what they did by one that does not."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.on_server = not url.startswith("sqlite")
        self.app = Rowlock(url)
        self.log = EventLog(folder / "events")
        self.workers: dict[str, Clocked] = {}
        self.ids: list[int] = []
        with closing(store_for(url)) as store:
            store.open()
        make_effects(url)

    def start(self, *names: str, zone: str = "UTC") -> None:
        """On SQLite they share one clock; on PostgreSQL each has its own."""
        for name in names:
            shared = next(iter(self.workers.values()), None)
            clock = Clock(self.folder / f"clock of {name}") if self.on_server or not shared else shared.clock
            settings = Settings(self.url, str(self.folder), LEASE, concurrency=2)
            self.workers[name] = Clocked(settings, name, clock, zone)
        known = "SELECT id FROM rowlock_workers WHERE dead_at IS NULL"
        eventually(lambda: {name for (name,) in rows(self.url, known)} == set(self.workers), 60)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.app.close()

    # -- clocks ----------------------------------------------------------------------------------

    def move(self, *seconds: float) -> None:
        """Move each worker's clock; if they share one, the first says where to."""
        away = dict(zip(self.workers, seconds, strict=True)) if len(seconds) > 1 else {}
        for name, worker in self.workers.items():
            worker.clock.move(away.get(name, seconds[0]) if self.on_server else seconds[0])

    # -- jobs ------------------------------------------------------------------------------------

    def enqueue(self, by: str, seconds: float = 0.0, **options: object) -> tuple[int, float]:
        id, before = self.workers[by].enqueue(seconds, **options)
        self.ids.append(id)
        return id, before

    def state(self, id: int) -> str:
        [(state,)] = rows(self.url, f"SELECT state FROM rowlock_jobs WHERE id = {id}")
        return str(state)

    def done(self, *ids: int) -> bool:
        return all(self.state(id) == "completed" for id in ids)

    def wait_until_done(self, *ids: int) -> None:
        eventually(lambda: self.done(*ids), 60, f"{[self.state(id) for id in ids]}")

    def started_at(self, id: int) -> float:
        """When its only run began, by the monotonic clock."""
        (start,) = [event.at for event in self.log.read() if event.job == id and event.what == "start"]
        return start

    def beaten(self) -> int:
        """Wait until every worker that lives has beaten once more."""
        moments = "SELECT id, beat_at FROM rowlock_workers WHERE dead_at IS NULL"
        before = dict(rows(self.url, moments))
        eventually(lambda: all(at != before[name] for name, at in rows(self.url, moments)), 60)
        return len(before)

    def dead(self) -> list[str]:
        return [
            name for (name,) in rows(self.url, "SELECT id FROM rowlock_workers WHERE dead_at IS NOT NULL")
        ]

    def must_have_left_all_alone(self) -> None:
        """Nobody was taken for dead, and each job ran once (a claim may go back before its run)."""
        assert self.dead() == []
        assert rows(self.url, "SELECT job_id FROM rowlock_history WHERE event = 'rescued'") == []
        started = Counter(event.job for event in self.log.read() if event.what == "start")
        assert started == dict.fromkeys(self.ids, 1)

    def verdict(self) -> Verdict:
        return check(gather(self.app, self.ids, self.log))


StartFleet = Callable[..., Fleet]


@pytest.fixture
def start_fleet(url: str, tmp_path: Path) -> Iterator[StartFleet]:
    reason = why_not(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:

        def start(*names: str, zone: str = "UTC") -> Fleet:
            fleet = stack.enter_context(closing(Fleet(url, tmp_path)))
            fleet.start(*names, zone=zone)
            return fleet

        yield start


def test_a_jump_of_an_hour_runs_nothing_early_twice_or_never(start_fleet: StartFleet) -> None:
    fleet = start_fleet("one", "two")
    long, _ = fleet.enqueue("one", 1.5 * LEASE)  # it runs on through all of it
    soon, before = fleet.enqueue("two", delay=1.5)
    fleet.wait_until_done(soon)
    assert fleet.started_at(soon) >= before + 1.5
    for away in (HOUR, -HOUR):
        fleet.move(away, -away)
        fleet.beaten()
        soon, before = fleet.enqueue("one", delay=1.0)
        fleet.wait_until_done(soon)
        assert fleet.started_at(soon) >= before + 1.0
    # The clock is behind by an hour now. What is scheduled by it is due when it says so.
    at = datetime.now(timezone.utc) + timedelta(seconds=1.0)
    late, _ = fleet.enqueue("one", run_at=at.isoformat())
    if not fleet.on_server:
        fleet.beaten()
        assert fleet.state(late) == "scheduled"
        fleet.move(0.0)
    fleet.wait_until_done(late, long)
    assert time.time() >= at.timestamp()
    fleet.verdict().must_be_clean()
    fleet.must_have_left_all_alone()


@pytest.mark.parametrize("away", [-HOUR, pytest.param(HOUR, marks=pytest.mark.chaos)])
def test_the_dead_are_noticed_when_their_lease_is_over_whatever_the_clock_says(
    start_fleet: StartFleet, away: float
) -> None:
    fleet = start_fleet("victim", "survivor")
    id, _ = fleet.enqueue("victim", 5.0)  # time enough to kill it
    rescued_at = f"SELECT at FROM rowlock_history WHERE job_id = {id} AND event = 'rescued'"
    running = f"SELECT claimed_by FROM rowlock_jobs WHERE id = {id} AND state = 'running'"
    [(holder,)] = eventually(lambda: rows(fleet.url, running))
    fleet.workers[holder].kill()
    fleet.move(away, -away)
    eventually(lambda: rows(fleet.url, rescued_at), 60, "its claim is never taken back")
    noticed = time.monotonic()
    column = "beat_at" if fleet.on_server else "beat_mono"
    [(beat,)] = rows(fleet.url, f"SELECT {column} FROM rowlock_workers WHERE id = '{holder}'")
    if fleet.on_server:
        [(at,)] = rows(fleet.url, rescued_at)
        assert (at - beat).total_seconds() >= LEASE
    else:
        assert noticed - beat >= LEASE
    assert fleet.dead() == [holder]
    fleet.wait_until_done(id)
    fleet.verdict().must_be_clean()


# -- the long ones -------------------------------------------------------------------------------

CHANGES = {
    "to summer time": datetime(2027, 3, 28, 1, tzinfo=timezone.utc),
    "to winter time": datetime(2026, 10, 25, 1, tzinfo=timezone.utc),
}


@pytest.mark.chaos
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_summer_time_runs_nothing_early_twice_or_never(
    start_fleet: StartFleet, change: str
) -> None:
    """Local time jumps, the clock's own does not: jobs before, over and after the change run once each."""
    moment = CHANGES[change]
    local = moment.astimezone(ZoneInfo(BERLIN))
    assert local.utcoffset() != (moment - timedelta(seconds=1)).astimezone(ZoneInfo(BERLIN)).utcoffset()
    fleet = start_fleet("one", "two", zone=BERLIN)
    for worker in fleet.workers.values():
        worker.clock.set(moment - timedelta(seconds=3))
    over, _ = fleet.enqueue("one", 3.0 * LEASE)  # runs over the change, longer than the lease
    waiting = {delay: fleet.enqueue("two", delay=delay) for delay in (0.5, 2.5, 3.5, 6.0)}
    # As a user in Berlin writes it, with the offset that is in force then; the server has its own now.
    now = datetime.now(timezone.utc) if fleet.on_server else moment - timedelta(seconds=3)
    named = [
        fleet.enqueue("one", run_at=(now + timedelta(seconds=after)).astimezone(ZoneInfo(BERLIN)).isoformat())
        for after in (1.0, 5.0)
    ]
    fleet.wait_until_done(over, *(id for id, _ in waiting.values()), *(id for id, _ in named))
    for delay, (id, before) in waiting.items():
        assert fleet.started_at(id) >= before + delay
    verdict = fleet.verdict()
    say(f"{change}: {verdict}")
    verdict.must_be_clean()
    fleet.must_have_left_all_alone()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_clocks_that_jump_again_and_again(start_fleet: StartFleet) -> None:
    seed = chosen_seed()
    say(f"\nROWLOCK_CHAOS_SEED={seed}")
    draw = random.Random(seed)
    fleet = start_fleet("one", "two", "three")
    due: list[tuple[int, float]] = []
    for _ in range(chosen_size(40)):
        fleet.move(*(draw.choice([-HOUR, 0.0, HOUR]) for _ in fleet.workers))
        for _ in range(3):
            delay = draw.choice([0.0, 0.3, 2.0])
            id, before = fleet.enqueue(draw.choice(list(fleet.workers)), draw.uniform(0.0, 1.0), delay=delay)
            due.append((id, before + delay))
        fleet.beaten()
    fleet.move(HOUR)  # on SQLite, what was scheduled by a clock that was ahead is due at last
    fleet.wait_until_done(*fleet.ids)
    verdict = fleet.verdict()
    say(f"{'PostgreSQL' if fleet.on_server else 'SQLite'}: {verdict}; declared dead {len(fleet.dead())}")
    verdict.must_be_clean()
    fleet.must_have_left_all_alone()
    if fleet.on_server:
        assert [id for id, at in due if fleet.started_at(id) < at] == []
