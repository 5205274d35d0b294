"""What a relay and its workers work on: which app, and its jobs or one of its consumers.

For workers that RQ starts, the app is named by ROWLOCK_APP.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from traceback import extract_tb
from typing import Any

from rowlock.consumers.source import ConsumerSource
from rowlock.errors import ConfigurationError
from rowlock.options import CONSUMERS, check_name
from rowlock.stores.sql.store import Store
from rowlock.workload import App, Workload


def app_from_environment() -> Any:
    """The app that ROWLOCK_APP names, as `module:app`, with the working directory on the import path."""
    named = os.environ.get("ROWLOCK_APP", "").strip()
    module, _, attribute = named.partition(":")
    if not module:
        raise ConfigurationError("RowlockWorker needs ROWLOCK_APP=module:app, which says where the tasks are")
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        place = "" if last.filename.startswith("<") else f" ({last.filename}, line {last.lineno})"
        reason = f"{type(error).__name__}: {error}{place}"
        raise ConfigurationError(f"ROWLOCK_APP={named!r} cannot be imported: {reason}") from error
    for part in (attribute or "app").split("."):
        found = getattr(found, part, None)
    if not hasattr(found, "workload"):
        raise ConfigurationError(f"ROWLOCK_APP={named!r}: there is no Rowlock of that name")
    found._imported_as = f"{module}:{attribute or 'app'}"
    return found


def workload_for(app: App, names: Sequence[str]) -> Workload:
    """What there is to do in these queues: jobs, or the rows of one consumer."""
    app.load_tasks()
    if not any(name.startswith(CONSUMERS) for name in names):
        workload = app.workload([check_name("queue", name) for name in names])
    elif len(names) > 1:
        raise ConfigurationError(
            f"{', '.join(names)}: one worker takes jobs of several queues, or rows of one consumer"
        )
    else:
        workload = app.workload(consumer=names[0].removeprefix(CONSUMERS))
    refuse_duckdb(workload.store)
    if isinstance(workload.store.source, ConsumerSource):
        _ = workload.store.source.table  # raises now, and not in a thread, if it cannot be worked on
    return workload


def refuse_duckdb(store: Store) -> None:
    """Raise if the queue is where no second process can get at it."""
    if store.url.startswith("duckdb:"):
        raise ConfigurationError(
            "the relay is not for a queue in DuckDB, which one process has open: keep the jobs in SQLite or "
            "PostgreSQL"
        )


def target_queues(workload: Workload) -> tuple[str, ...]:
    """The queues of a target that carry this; none: all of the app's jobs."""
    return (CONSUMERS + workload.consumer,) if workload.consumer else tuple(workload.queues)
