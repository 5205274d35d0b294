"""PostgreSQL breaks: crashes under load, lost answers, cut lines, a server gone for longer than the lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.database import rows
from tests.chaos.load import Load, LookUps
from tests.chaos.storm import Storm, chosen_size, say
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.stores.steps import worker

WORKERS = 2
FUSED = r"rowlock_jobs AS j\s+SET state = 'running'"  # an exchange: outcomes go back, claims come


class Through(Storm):
    """A storm whose workers reach the server through a proxy, and whose judges do not."""

    def __init__(self, url: str, proxy: Proxy, folder: Path, **how: Any) -> None:
        super().__init__(url, folder, **how)
        self._settings = replace(self._settings, url=proxy.url(url))


def ends(storm: Storm) -> int:
    """How many runs came to their end so far."""
    return sum(event.what == "end" for event in storm.log.read())


def starts(storm: Storm) -> int:
    return sum(event.what == "start" for event in storm.log.read())


def wait_for_starts(storm: Storm, number: int) -> None:
    eventually(lambda: starts(storm) >= number, 60, "the workers start nothing")


def wait_for_ends(storm: Storm, number: int) -> None:
    eventually(lambda: ends(storm) >= number, 60, "the workers do not go on")


def judge(storm: Storm, load: Load, seen: LookUps, broken: str) -> None:
    """Let it come to its end, and hold it against every promise."""
    storm.drain(timeout=300)
    verdict = storm.verdict(extra=load.ids)
    say(f"{storm.name}: {broken}; calls {dict(load.calls)}; looked up {dict(seen.counted())}")
    say(f"{storm.name}: {verdict}")
    load.must_be_true(storm.app.store.url)
    # Every call was told how it ended. (A beat or maintenance may stay unknown: it is done again.)
    assert load.calls["unknown"] == 0
    verdict.must_be_clean()


# -- crashes -------------------------------------------------------------------------------------


def crash_under_load(server: PostgresServer, folder: Path, crashes: int) -> None:
    with (
        Storm(server.url, folder, lease=5.0, concurrency=4) as storm,
        LookUps(folder / "workers.log") as seen,
    ):
        storm.start_workers(WORKERS)
        with Load(server.url, folder) as load:
            for _ in range(crashes):
                more = ends(storm) + 1
                load.grow(by=storm.random.randint(1, 60))
                wait_for_ends(storm, more)
                server.restart("immediate")
        judge(storm, load, seen, f"{crashes} crashes")


def test_crashes_of_the_server_lose_nothing_that_was_acknowledged(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    crash_under_load(own_postgres, tmp_path, crashes=2)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_fifty_crashes_of_the_server(own_postgres: PostgresServer, tmp_path: Path) -> None:
    crash_under_load(own_postgres, tmp_path, crashes=chosen_size(50))


# -- a bad line ----------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as made:
        yield made


def wait_for_losses(proxy: Proxy, number: int) -> None:
    eventually(lambda: proxy.dropped >= number, 60, "nobody sent what was to be lost")


def lose_and_cut(url: str, proxy: Proxy, folder: Path, faults: int) -> None:
    """Faults drawn from the seed, each met before the next is laid: answers, COMMITs, lines get lost."""
    with (
        Through(url, proxy, folder, lease=5.0, concurrency=4) as storm,
        LookUps(folder / "workers.log") as seen,
    ):
        kinds: dict[str, Callable[[], None]] = {
            "replies to COMMIT": proxy.drop_reply_to_commit,
            "COMMITs": proxy.drop_commit,
            "replies to an enqueue": lambda: proxy.drop_reply_to(r"INSERT INTO \S*rowlock_jobs"),
            "replies to an exchange": lambda: proxy.drop_reply_to(FUSED),
            "cuts": proxy.cut,
        }
        drawn = storm.random.choices(list(kinds), k=faults)
        storm.start_workers(WORKERS)
        with Load(proxy.url(url), folder) as load:
            for kind in drawn:
                load.grow(by=storm.random.randint(1, 15))
                lost = proxy.dropped + (kind != "cuts")
                kinds[kind]()
                wait_for_losses(proxy, lost)
        counts = ", ".join(f"{drawn.count(kind)} {kind}" for kind in kinds)
        judge(storm, load, seen, f"lost: {counts}")


def test_lost_answers_and_cut_lines_lose_and_double_nothing(
    proxy: Proxy, postgres_schema: str, tmp_path: Path
) -> None:
    lose_and_cut(postgres_schema, proxy, tmp_path, faults=10)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_five_hundred_lost_answers_and_cut_lines(proxy: Proxy, postgres_schema: str, tmp_path: Path) -> None:
    lose_and_cut(postgres_schema, proxy, tmp_path, faults=chosen_size(500))


# -- gone for longer than the lease --------------------------------------------------------------


def be_gone(server: PostgresServer, seconds: float, meanwhile: Callable[[], object]) -> None:
    """Crash the server, and bring it back when so much time has passed and `meanwhile` has come true."""
    server.stop("immediate")
    back_at = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > back_at and meanwhile(), seconds + 60, "it did not come true")
    server.start()


def outcomes(storm: Storm, ids: list[int]) -> list[tuple[str, int]]:
    """State and claim of each job."""
    found = {id: (state, claim) for id, state, claim in rows(storm.app.store.url, JOBS)}
    return [found[id] for id in ids]


JOBS = "SELECT id, state, claim FROM rowlock_jobs"


def test_what_ended_while_the_server_was_gone_is_delivered_when_it_is_back(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with Storm(own_postgres.url, tmp_path, lease=2.0, concurrency=3) as storm:
        storm.start_workers(1)
        plain = [storm.app.enqueue("plain", {"seconds": 5.0}).id for _ in range(3)]
        wait_for_starts(storm, 3)
        later = [storm.app.enqueue("plain").id for _ in range(3)]
        storm.app.close()
        be_gone(own_postgres, 3.0, meanwhile=lambda: ends(storm) == 3)
        assert starts(storm) == 3  # it has claimed nothing
        said = (tmp_path / "workers.log").read_text().splitlines()
        storm.drain()
        # It is the only one, so nobody has taken its claims back: the first runs count.
        assert outcomes(storm, [*plain, *later]) == [("completed", 1)] * 6
        storm.verdict(extra=[*plain, *later]).must_be_clean()
        assert len(said) <= 6, said  # the loop, the heartbeat and the listener, each once per kind of trouble


def gone_for_all(server: PostgresServer, folder: Path, rounds: int, lease: float) -> None:
    """All lose the server together: nobody is declared dead when it is back, and the first runs count."""
    with Storm(server.url, folder, lease=lease, concurrency=2) as storm:
        storm.start_workers(3)
        ids: list[int] = []
        most = 0
        for number in range(rounds):
            more = starts(storm) + 6
            ids += [
                storm.app.enqueue("plain", {"seconds": storm.random.uniform(0.5, 1.5) * lease}).id
                for _ in range(6)
            ]
            wait_for_starts(storm, more)
            storm.app.close()
            lines = len((folder / "workers.log").read_text().splitlines())
            be_gone(server, lease * storm.random.uniform(1.1, 2.0), meanwhile=lambda: True)
            storm.drain()
            most = max(most, len((folder / "workers.log").read_text().splitlines()) - lines)
            say(f"{storm.name}: outage {number + 1} of {rounds}, at most {most} lines by 3 workers in one")
        verdict = storm.verdict(extra=ids)
        say(f"{storm.name}: {rounds} outages longer than the lease of {lease:g} s; {verdict}")
        verdict.must_be_clean()
        assert most <= 3 * 8
        assert outcomes(storm, ids) == [("completed", 1)] * len(ids)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_nobody_is_declared_dead_for_an_outage_that_all_had(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    gone_for_all(own_postgres, tmp_path, rounds=chosen_size(5), lease=6.0)


@pytest.mark.chaos
def test_one_who_alone_lost_the_server_is_refused_when_it_is_back(
    proxy: Proxy, postgres_schema: str, tmp_path: Path
) -> None:
    """The others have the server: they take its claim back, and the fence refuses what comes late."""
    with Through(postgres_schema, proxy, tmp_path, lease=1.0, concurrency=1) as storm:
        storm.start_workers(1)
        job = storm.app.enqueue("plain", {"seconds": 2.5})
        wait_for_starts(storm, 1)
        proxy.freeze()
        store = storm.app.store
        other = worker(store, "other", lease=60.0)
        eventually(lambda: store.rescue(other, careful_age=60.0).requeued, 30, "it is not taken back")
        wait_for_ends(storm, 1)
        proxy.cut()
        proxy.thaw()
        storm.drain()
        [(state, claim)] = outcomes(storm, [job.id])
        assert state == "completed" and claim > 1
        assert "claim 1 was lost" in (tmp_path / "workers.log").read_text()
        storm.verdict(extra=[job.id]).must_be_clean()
