"""What a program needs that shares a DuckDB file with others: `create_engine`, whose connections take turns.

The queue itself is in `rowlock.stores.duckdb`; the driver is DuckDB's own `duckdb`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from rowlock.errors import ConfigurationError

TURN_TIMEOUT_SECONDS = 60.0
__all__ = ["create_engine"]


def create_engine(
    path: str | os.PathLike[str], *, timeout: float = TURN_TIMEOUT_SECONDS, **options: Any
) -> Any:
    """A SQLAlchemy engine for a DuckDB file (a path, or its URL) that several processes use: it has no pool.

    Each of its connections takes a turn with the file when it is checked out and ends it when it is given
    back, so keep sessions short. `timeout` is how many seconds it waits for one; `options` are SQLAlchemy's.
    """
    for name in ("poolclass", "pool", "creator"):
        if name in options:
            raise ConfigurationError(
                f"create_engine({name}=...): this engine has no pool, so that others get a turn with the file"
            )
    try:
        sqlalchemy, wrapper = import_module("sqlalchemy"), import_module("duckdb_engine")
    except ImportError as error:
        raise ConfigurationError(
            "it needs SQLAlchemy and duckdb-engine: install them with `pip install sqlalchemy duckdb-engine`"
        ) from error
    from rowlock.stores.duckdb.turns import TAKES_TURNS, LentConnection, shared_turn

    shown = os.fspath(path).removeprefix("duckdb:///")
    if shown in ("", ":memory:"):
        raise ConfigurationError(f"create_engine({shown!r}): name a file")
    turn = shared_turn(os.path.abspath(shown), shown)

    def connect() -> Any:
        return wrapper.ConnectionWrapper(LentConnection(turn, timeout))

    options.setdefault("poolclass", import_module("sqlalchemy.pool").NullPool)
    engine = sqlalchemy.create_engine(f"duckdb:///{shown}", creator=connect, **options)
    engine.update_execution_options(**{TAKES_TURNS: True})
    return engine
