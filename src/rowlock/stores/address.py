"""A database URL to the store that serves it; each store's folder is imported when it is first asked for.

Opens nothing.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rowlock.errors import ConfigurationError
from rowlock.stores.base import Store

_EXAMPLE = "sqlite:///jobs.db (relative) or sqlite:////var/lib/jobs.db (absolute)"
_ANY = f"{_EXAMPLE}, or postgresql://user@host/database"
_PLANNED = {"duckdb": "DuckDB"}
# SQLAlchemy's drivers for the same databases: a program has one URL, and rowlock uses its own driver.
_DRIVERS = {
    "sqlite": ("", "pysqlite", "aiosqlite"),
    "postgresql": ("", "psycopg", "psycopg_async", "psycopg2", "asyncpg"),
    "postgres": ("",),
}


def store_for(url: str, *, home: str = "", busy_timeout: float = 5.0) -> Store:
    """The store at this URL; nothing is opened or created yet. `home` is where relative paths begin."""
    if not isinstance(url, str) or "://" not in url:
        shown = "postgres..." if str(url).lower().startswith("postgres") else repr(url)  # with a password?
        raise ConfigurationError(f"{shown} is not a database URL; write for example {_ANY}")
    kind = url.partition("://")[0].lower()
    database, _, driver = kind.partition("+")
    if driver in _DRIVERS.get(database, ()):
        if database == "sqlite":
            return _sqlite(url, home=home, busy_timeout=busy_timeout)
        return _postgres(url, busy_timeout=busy_timeout)
    if kind in _PLANNED:
        raise ConfigurationError(f"this version of rowlock has no {_PLANNED[kind]} store yet; use {_EXAMPLE}")
    raise ConfigurationError(f"{kind!r} is not a kind of database that rowlock knows; use {_ANY}")


def _postgres(url: str, **options: Any) -> Store:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise ConfigurationError(
            "PostgreSQL needs psycopg: install it with `pip install 'rowlock[postgres]'`"
        )
    from rowlock.stores.postgres import PostgresStore
    from rowlock.stores.postgres.url import parse

    return PostgresStore(parse(url), **options)


def _sqlite(url: str, **options: Any) -> Store:
    from rowlock.stores.sqlite import SqliteStore

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a database URL ({error}); write {_EXAMPLE}") from None
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc:
        raise ConfigurationError(f"{url!r} names a host; a SQLite file has none: use {_EXAMPLE}")
    if path in ("", ":memory:"):
        raise ConfigurationError(f"{url!r} names no file; a queue has to outlive its process: use {_EXAMPLE}")
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if unknown or parts.fragment:
        raise ConfigurationError(
            f"{url!r}: a SQLite URL takes no options or fragments ({', '.join(unknown)})"
        )
    return SqliteStore(path, **options)
