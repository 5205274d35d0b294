"""`rowlock workers`: who works, and where its runs stand.

Lays out what the store says.
"""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from rowlock import Rowlock
from rowlock.cli import show, target
from rowlock.cli.failing import CommandFailed
from rowlock.cli.options import Database, Json, flag, option
from rowlock.monitoring import WorkerRecord

commands = typer.Typer()

_WIDE = 120  # columns from which host, process and version have room beside the worker's id
_ANSWER_TIMEOUT_SECONDS = 10.0  # seconds that a worker may take to say where its runs stand
_LOOK_EVERY = 0.2


@commands.command(rich_help_panel="Queues and workers")
def workers(
    everyone: Annotated[bool, flag("Also those that have ended.", "--all")] = False,
    stacks: Annotated[
        str | None, option("ID", "Ask this worker where each of its runs stands, and show the stacks.")
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """List the workers: which are alive, on which queues, how much each runs.

    Example: rowlock workers
    Or: rowlock workers --all --json
    Or: rowlock workers --stacks web-1:4711:a1b2c3
    """
    app = target.queue_at(database)
    if stacks is not None:
        text = _stacks_of(app, stacks)
        show.print_json({"worker": stacks, "stacks": text}) if json else show.say(text)
        return
    records = [one for one in app.store.workers() if everyone or one.dead_at is None]
    if json:
        show.print_json([{**one.to_dict(), "status": status(one)} for one in records])
        return
    if not records:
        hint = "" if everyone else " now (--all shows those that ended); start one: rowlock worker module:app"
        show.hint(f"no workers{hint}")
        return
    show.table([_row(one) for one in records], right=("running", "ahead", "pid"))
    for one in records:
        if one.is_relay and one.dead_at is None:
            show.say(f"{one.id} is a relay: what it has claimed waits in {one.info['relay']} for a worker")
        loaded = one.info.get("residents", {})
        if loaded and one.dead_at is None:
            names = ", ".join(f"{name} ({seconds:.1f} s)" for name, seconds in loaded.items())
            show.say(f"{one.id} has loaded {names}")


def _row(worker: WorkerRecord) -> dict[str, object]:
    wide = {"host": worker.host, "pid": worker.pid, "version": worker.version}
    # How many jobs it claims ahead of its free slots.
    ahead = sum(pool.get("ahead", 0) for pool in worker.info.get("pools", {}).values())
    return {
        "worker": worker.id,
        "status": show.styled(status(worker)),
        "running": f"{worker.running}/{worker.concurrency}",
        "strategy": worker.strategy,
        "last beat": f"{show.duration(show.since(worker.beat_at))} ago",
        **(wide if show.console().width >= _WIDE else {}),
        "ahead": ahead,
        "queues": ", ".join(worker.queues) or "all",
    }


def status(worker: WorkerRecord) -> str:
    """`alive`, `silent` (its lease has run out) or `stopped` (it ended by itself)."""
    if worker.alive:
        return "alive"
    return worker.ended or "silent"


def _stacks_of(app: Rowlock, id: str) -> str:
    """Ask through the database, so that it works across machines; the worker answers while anything runs."""
    worker = next((one for one in app.store.workers() if one.id == id), None)
    if worker is None:
        raise CommandFailed(f"there is no worker {id}; `rowlock workers` lists them")
    if worker.dead_at is not None:
        raise CommandFailed(f"worker {id} has ended")
    if not worker.running:
        return "nothing runs"
    question = os.urandom(4).hex()
    app.store.tell(id, {"stacks_asked": question})
    deadline = time.monotonic() + _ANSWER_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        info = app.store.info(id)
        if info.get("stacks_answered") == question:
            return str(info["stacks"])
        time.sleep(_LOOK_EVERY)
    raise CommandFailed(
        f"worker {id} did not answer within {_ANSWER_TIMEOUT_SECONDS:g} s: something may hold its "
        f"interpreter; if you can reach process {worker.pid} on {worker.host}, py-spy shows where it stands"
    )


# -- for probes -----------------------------------------------------------------------------------
