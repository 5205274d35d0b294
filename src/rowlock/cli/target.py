"""Which app or which database a command is about: arguments, then environment, then pyproject.toml.

Imports the app only where it is needed; opens a store only to see that it is there.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from urllib.parse import quote

from rowlock import Rowlock, RowlockError
from rowlock.cli.failing import USAGE, CommandFailed, note
from rowlock.cli.importing import import_app, import_tasks

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+_]+:")  # two letters at least: C: is a drive
_DUCKDB_SUFFIXES = (".duckdb", ".ddb")  # the file is not read: that would drop a database's locks on it
_used: list[Rowlock] = []


def named_app(target: str | None = None) -> str | None:
    """The `module:app` that was typed, or that ROWLOCK_APP or ./pyproject.toml name, or None."""
    return target or os.environ.get("ROWLOCK_APP", "").strip() or _app_of_project()


def _app_of_project() -> str | None:
    project = Path("pyproject.toml")
    if not project.is_file():
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(project.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise CommandFailed(f"pyproject.toml cannot be read: {error}") from None
    section = tool.get("rowlock", {})
    app = section.get("app") if isinstance(section, dict) else section
    if app is not None and not isinstance(app, str):
        raise CommandFailed(f'pyproject.toml: [tool.rowlock] app = {app!r}; write app = "module:app"')
    return app


def the_app(target: str | None) -> tuple[str, Rowlock]:
    """The app that a worker runs, with all its tasks, and its name."""
    name = named_app(target)
    if not name:
        raise CommandFailed(
            "which app? Name it as module:app, or set ROWLOCK_APP, or write "
            'app = "module:app" under [tool.rowlock] in pyproject.toml',
            USAGE,
        )
    app = import_app(name)
    import_tasks(app, name)
    return name, app


def queue_at(database: str | None) -> Rowlock:
    """The queue to look at or to operate on; raises unless it is there: reading creates nothing."""
    app = new_queue_at(database)
    app.store.open(create=False)
    return app


def new_queue_at(database: str | None) -> Rowlock:
    """The queue to create or to use; nothing is opened yet."""
    name = None if _is_chosen(database) else named_app()
    if not name:
        return _without_app(database)
    try:
        with redirect_stdout(sys.stderr):  # what a module prints must not end up in --json
            return _noted(import_app(name))
    except CommandFailed as error:
        raise CommandFailed(f"{error}; --database URL does without the app", error.code) from error


def producer(database: str | None) -> Rowlock:
    """The queue to enqueue into: the app itself if it is named and has that database, for it knows tasks."""
    name = named_app()
    if not name:
        return _without_app(database)
    try:
        with redirect_stdout(sys.stderr):
            _, app = the_app(name)
    except (CommandFailed, RowlockError) as error:
        if not _is_chosen(database):
            raise
        note(f"{error}; the job is enqueued without its task's options, and its arguments unchecked")
        return _without_app(database)
    if not _is_chosen(database):
        return _noted(app)
    chosen = _without_app(database)
    return _noted(app) if _place(chosen) == _place(app) else chosen


def close() -> None:
    """Close the connections of every queue that was used; a server logs those that just break off."""
    while _used:
        _used.pop().close()


def _noted(app: Rowlock) -> Rowlock:
    _used.append(app)
    return app


def address(app: Rowlock) -> str:
    """Where the queue is, as people name it: a file's path, else its URL."""
    return app.store.url.removeprefix("sqlite:///")


def copyable(database: str) -> str:
    """What was given as --database, in a command to copy: without its password."""
    from rowlock.settings import without_password

    masked = without_password(database).replace(":***@", "@")
    return re.sub(r"(?<=[?&])password=\*\*\*(&|$)", "", masked).rstrip("?&")


def _place(app: Rowlock) -> str:
    return os.path.abspath(address(app))


def _is_chosen(database: str | None) -> bool:
    """Whether the option or the environment names a database: then the app's does not count."""
    return database is not None or bool(os.environ.get("ROWLOCK_DATABASE_URL"))


def _without_app(database: str | None) -> Rowlock:
    return _noted(Rowlock(None if database is None else as_url(database)))


def as_url(database: str) -> str:
    """A database URL as it is, a file's path as a URL: of DuckDB by its suffix, else of SQLite."""
    if not database.strip():
        raise CommandFailed("--database is empty; write for example sqlite:///jobs.db or jobs.db", USAGE)
    if _SCHEME.match(database) and not os.path.exists(database):
        return database
    path = Path(database).expanduser()
    kind = "duckdb" if path.suffix.lower() in _DUCKDB_SUFFIXES else "sqlite"
    return f"{kind}:///" + quote(path.as_posix(), safe="/:")
