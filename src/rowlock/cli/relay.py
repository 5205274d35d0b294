"""`rowlock relay`, and `--via rq` of `rowlock worker` and `rowlock consume`: RQ carries ids, rowlock works.

Says who works and fails in one line; the work itself is `rowlock.relays`' and `rowlock.worker`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowlock import Rowlock
from rowlock.cli import logs, options, target
from rowlock.cli.failing import USAGE, CommandFailed, note
from rowlock.cli.options import option
from rowlock.cli.work import announce, run_worker
from rowlock.options import CONSUMERS
from rowlock.worker.options import ConsumingOptions

if TYPE_CHECKING:
    from types import ModuleType

commands = typer.Typer()

_ENGINES = ("rq",)
_ONE_RUN_AT_A_TIME: dict[str, tuple[Any, ...]] = {  # what these options may be beside --via
    "concurrency": (None, 1),
    "pool": ("thread",),
    "prefetch": (None, 0),
    "max_jobs_per_child": (None,),
}


@commands.command(rich_help_panel="Work")
def relay(
    app: options.AppArgument = None,
    engine: Annotated[str, option("ENGINE", "Who carries the ids: rq (at REDIS_URL).", "--target")] = "rq",
    queue: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Only this queue, or consumer:NAME; may be repeated. Else all jobs and all consumers.",
            "--queue",
            "-q",
        ),
    ] = None,
    strategy: options.StrategyName = "PRIORITY",
    until_empty: options.UntilEmpty = False,
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "text",
) -> None:
    """Hand queued jobs and due rows to RQ, for workers that run elsewhere: it runs nothing itself.

    The workers are `rq worker --worker-class rowlock.relays.rq.RowlockWorker` with ROWLOCK_APP, or
    `rowlock worker --via rq`.

    Example: rowlock relay shop:app --target rq
    Or: rowlock relay lab:app --target rq -q consumer:birdnet
    """
    logs.configure(log_level, log_format)
    _, rowlock = target.the_app(app)
    names = queue or [CONSUMERS + name for name in rowlock.consumers]
    relays = _relay_module("--target", engine, rowlock, names)
    if relays is None:
        return
    from rowlock.worker.signals import told_by_signals

    made = relays.Relays(rowlock, queue or (), strategy=strategy)
    with told_by_signals(lambda number, second: made.stop()) as told:
        told.process_ends = True
        ids = ", ".join(one.register() for one in made.relays)
        where = f"{', '.join(queue or ()) or 'all queues'} of {target.address(rowlock)}"
        announce(f"relay {ids} hands over {where} to {engine} at {_redis(rowlock)}", log_format)
        made.run(until_empty)
    done, back = sum(one.handed_over for one in made.relays), sum(one.sent.taken_back for one in made.relays)
    announce(f"relay {ids} ended: {done} handed over, {back} taken back", log_format)


def _refuse_via(engine: str, chosen: ConsumingOptions) -> None:
    """Raise for options that mean nothing to a worker that makes one run at a time in its own process."""
    for name, allowed in _ONE_RUN_AT_A_TIME.items():
        if (given := chosen.get(name)) not in allowed:
            raise CommandFailed(
                f"--{name.replace('_', '-')} {given} does not go with --via {engine}: it makes one run at a "
                "time in its own process; start more of them for more",
                USAGE,
            )


def work_via(
    engine: str,
    rowlock: Rowlock,
    queues: Sequence[str],
    chosen: ConsumingOptions,
    until_empty: bool,
    log_format: str,
) -> None:
    """Run a worker that gets its work by way of this engine, and the relay that brings it there."""
    _refuse_via(engine, chosen)
    relays = _relay_module("--via", engine, rowlock, queues)
    if relays is None:
        return
    via = relays.ViaRq(
        rowlock,
        queues,
        strategy=chosen.get("strategy", "PRIORITY"),
        grace=chosen.get("grace"),
        worker_id=chosen.get("worker_id"),
    )
    if not rowlock.tasks and not rowlock.consumers:
        note("this app has no tasks: import the modules that have them, or name them in include=[...]")
    what = f"{', '.join(queues) or 'all queues'} of {target.address(rowlock)}"
    takes = f"{what} by way of {engine} at {_redis(rowlock)}, one at a time"
    with via.ending():
        run_worker(via.worker, takes, until_empty, log_format)


def _relay_module(option: str, engine: str, rowlock: Rowlock, names: Sequence[str]) -> ModuleType | None:
    """The module that knows the engine, when both can be used; None if told to stop before that.

    It waits for the database as long as it takes.
    """
    from rowlock.worker.wait_for_database import when_usable

    if engine not in _ENGINES:
        raise typer.BadParameter(f"{option} {engine!r}: must be one of {', '.join(_ENGINES)}")
    try:
        from rowlock.relays import via, workload
    except ImportError as error:
        raise CommandFailed(f"{option} {engine} needs RQ: pip install 'rowlock[rq]' ({error})") from error
    workload.refuse_duckdb(rowlock.store)
    via.check_rq(rowlock.settings.redis_url)
    _tell_what_is_never_overdue(rowlock, names)
    return None if when_usable(rowlock.store.install_id) is None else via


def _tell_what_is_never_overdue(rowlock: Rowlock, names: Sequence[str]) -> None:
    if not rowlock.settings.failed_after_in_relay:
        return
    for name in names:
        consumer = rowlock.consumers.get(name.removeprefix(CONSUMERS)) if name.startswith(CONSUMERS) else None
        if consumer is not None and not consumer.knows_due_time:
            note(
                f"rows of {consumer.name} are never overdue: it has neither due_at= nor Status(created_at=), "
                "from which FAILED_JOB_TIMEOUT_SECONDS would count"
            )


def _redis(rowlock: Rowlock) -> str:
    from rowlock.settings import without_password

    return without_password(rowlock.settings.redis_url)
