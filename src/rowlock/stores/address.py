"""A database URL to the store that serves it; each store's folder is imported when it is first asked for.

Opens nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rowlock.errors import ConfigurationError

if TYPE_CHECKING:
    from rowlock.stores.duckdb.database import Access
    from rowlock.stores.duckdb.owner import Owner
    from rowlock.stores.sql.store import Store

_EXAMPLE = "sqlite:///jobs.db (relative) or sqlite:////var/lib/jobs.db (absolute)"
_DUCKDB_EXAMPLE = "duckdb:///data.duckdb (relative) or duckdb:////var/lib/data.duckdb (absolute)"
_ANY = f"{_EXAMPLE}, postgresql://user@host/database or duckdb:///data.duckdb"
# SQLAlchemy's drivers for the same databases: a program has one URL, and rowlock uses its own driver.
_DRIVERS = {
    "sqlite": ("", "pysqlite", "aiosqlite"),
    "postgresql": ("", "psycopg", "psycopg_async", "psycopg2", "asyncpg"),
    "postgres": ("",),
    "duckdb": ("",),
}


def store_for(url: str, *, home: str = "", busy_timeout: float = 5.0) -> Store:
    """The store at this URL; nothing is opened or created yet. `home` is where relative paths begin."""
    if not isinstance(url, str) or "://" not in url:
        shown = "postgres..." if str(url).lower().startswith("postgres") else repr(url)  # with a password?
        raise ConfigurationError(f"{shown} is not a database URL; write for example {_ANY}")
    kind = url.partition("://")[0].lower()
    database, _, driver = kind.partition("+")
    if driver not in _DRIVERS.get(database, ()):
        raise ConfigurationError(f"{kind!r} is not a kind of database that rowlock knows; use {_ANY}")
    if database == "sqlite":
        from rowlock.stores.sqlite import SqliteStore

        return SqliteStore(_path_in(url, "SQLite", _EXAMPLE), home=home, busy_timeout=busy_timeout)
    if database == "duckdb":
        path = _path_in(url, "DuckDB", _DUCKDB_EXAMPLE)
        _need("duckdb", "DuckDB needs its driver", "duckdb")
        from rowlock.stores.duckdb.turns import Turns

        turns = Turns(os.path.abspath(os.path.join(home, path)), path, busy_timeout)
        return _duckdb(turns, busy_timeout)
    _need("psycopg", "PostgreSQL needs psycopg", "postgres")
    from rowlock.stores.postgres import PostgresStore
    from rowlock.stores.postgres.url import parse

    return PostgresStore(parse(url), busy_timeout=busy_timeout)


def owner_of(engine: Any = None, connection: Any = None, home: str = "") -> Owner:
    """What this process has a DuckDB file open with: a SQLAlchemy engine or a connection; opens nothing."""
    from rowlock.stores.duckdb.owner import ConnectionOwner, EngineOwner

    return ConnectionOwner(connection) if engine is None else EngineOwner(engine, home)


def owned_store(owner: Owner, *, busy_timeout: float = 5.0) -> Store:
    """The store in the DuckDB file that this process has open."""
    _need("duckdb", "DuckDB needs its driver", "duckdb")
    return _duckdb(owner, busy_timeout)


def _duckdb(access: Access, busy_timeout: float) -> Store:
    from rowlock.stores.duckdb.database import DuckdbDatabase
    from rowlock.stores.duckdb.store import DuckdbStore

    return DuckdbStore(DuckdbDatabase(access, busy_timeout=busy_timeout))


def _need(module: str, said: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigurationError(f"{said}: install it with `pip install 'rowlock[{extra}]'`")


def _path_in(url: str, kind: str, example: str) -> str:
    """The path of the file that a URL names."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a database URL ({error}); write {example}") from None
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc:
        raise ConfigurationError(f"{url!r} names a host; a {kind} file has none: use {example}")
    if path in ("", ":memory:"):
        raise ConfigurationError(f"{url!r} names no file; a queue has to outlive its process: use {example}")
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if unknown or parts.fragment:
        raise ConfigurationError(
            f"{url!r}: a {kind} URL takes no options or fragments ({', '.join(unknown)})"
        )
    return path
