"""A worker that empties a queue, also as a program: `python -m tests.stores.draining URL NAME`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing

from rowlock.job import ClaimRequest, Ending
from rowlock.stores.address import store_for
from rowlock.stores.sql.store import Store
from tests.stores.steps import outcome, take, worker


def drain(store: Store, name: str, strategy: str) -> list[int]:
    """Claim and complete until nothing is left; returns the ids of the jobs that were claimed."""
    who = worker(store, name)
    done: list[int] = []
    claims = take(store, who, 3, strategy=strategy)
    while claims:
        done += [claim.id for claim in claims]
        outcomes = [outcome(claim, Ending.COMPLETED, result="1") for claim in claims]

        got = store.exchange(who, outcomes, ClaimRequest(count=3, strategy=strategy))
        assert got.lost == []
        claims = got.claims
    return done


def drain_in_processes(url: str, names: Sequence[str]) -> list[list[int]]:
    """Let as many processes as there are names drain the queue at once; returns what each of them did."""
    processes = [
        subprocess.Popen([sys.executable, "-m", "tests.stores.draining", url, name], stdout=subprocess.PIPE)
        for name in names
    ]
    try:
        said = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(names)
    return [json.loads(one) for one in said]


if __name__ == "__main__":
    with closing(store_for(sys.argv[1])) as store:
        json.dump(drain(store, sys.argv[2], "FIFO"), sys.stdout)
