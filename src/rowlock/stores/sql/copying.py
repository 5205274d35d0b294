"""One side of `rowlock copy`: what is read of a queue, written into one, and how one is closed for good.

What is copied when is decided in `rowlock/copying/`; a database's folder has what truly differs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from rowlock.errors import StoreMoved
from rowlock.stores.sql.schema_versions import VERSION
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.stores.sql.store import Store

_SHARED = ("rowlock.stores.sql", "copying.sql")
JOB_COLUMNS: tuple[str, ...] = (
    *("id", "position", "task", "queue", "priority", "state", "claim", "failures", "max_attempts", "isolate"),
    *("deaths", "created_at", "run_at", "due_at", "expires_at", "claimed_at", "claimed_by", "started_at"),
    *("finished_at", "cancel_requested_at", "unique_key", "unique_until", "args", "result", "error"),
    *("error_kind", "meta"),
)
COLUMNS: dict[str, tuple[str, ...]] = {
    "jobs": JOB_COLUMNS,
    "history": ("job_id", "claim", "event", "at", "worker", "started_at", "error", "error_kind"),
    "logs": ("job_id", "claim", "at", "message", "fields"),
    "progress": ("job_id", "claim", "done", "total", "note", "at"),
    "queues": ("name", "paused_at", "paused_until", "strategy"),
}
TIMES = frozenset(
    (
        *("created_at", "run_at", "due_at", "expires_at", "claimed_at", "started_at", "finished_at"),
        *("cancel_requested_at", "at", "paused_at", "paused_until"),
    )
)
MOVED_TO = "moved_to"  # the key in rowlock_meta of the target's install id
MOVED = "moved"  # the key in rowlock_meta of the sentence that says where a queue has moved to


class CopySide(ABC):
    """A queue that is copied from or to."""

    version = VERSION  # of the schema that this code knows
    _keys: str  # what reads the parameter `keys`, a list as JSON, in its SQL
    _freezes: tuple[str, ...] = ()  # the statements that refuse every change of jobs from then on
    _thaws: tuple[str, ...] = ()

    def __init__(self, store: Store) -> None:
        self.store = store
        own = (store.database.package, "copying.sql")
        words = {
            f"{table}_columns": ", ".join(f'"{name}"' for name in names) for table, names in COLUMNS.items()
        }
        self._statements = store.database.statements(_SHARED, own, words={**words, "keys": self._keys})

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the queue is, for people on another machine or in another folder; without a password."""

    @abstractmethod
    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows with the columns of `COLUMNS[table]`, as fast as this database can."""

    def lock_numbers(self, tx: Session) -> int:
        """The last number that was drawn; nobody draws another before this transaction ends."""
        # In SQLite, BEGIN IMMEDIATE has locked everything; in DuckDB, who writes holds the lock of this
        # process, and no other has the file.
        return int(tx.row("last_number")[0])

    def set_last_number(self, tx: Session, number: int) -> None:
        """The next number that is drawn is a higher one; `lock_numbers` comes first."""
        tx.rows("set_last_number", position=number)

    @contextmanager
    def _using(self, opened: AbstractContextManager[Session]) -> Iterator[Session]:
        with opened as session:
            yield session.using(self._statements)

    def reading(self) -> AbstractContextManager[Session]:
        """A session for short reads, with the statements of a copy."""
        return self._using(self.store.database.read())

    def snapshot(self) -> AbstractContextManager[Session]:
        """The same; all reads see the same moment."""
        return self._using(self.store.database.snapshot())

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that commits durably when the block ends, also on a queue that has moved."""
        return self._using(self.store.database.write())

    def check_rights(self) -> None:
        """Raise if this user may not close the queue: of a file, whoever may write may."""
        with self.writing():
            pass

    def freeze(self, tx: Session) -> None:
        """Refuse every change of jobs, history, logs and progress from the end of this transaction on."""
        for statement in self._freezes:
            tx.run(statement)

    def thaw(self, tx: Session) -> None:
        """Allow changes again."""
        for statement in self._thaws:
            tx.run(statement)

    def read(self, db: Session, table: str, ids: Sequence[int]) -> list[Any]:
        """The rows of one table that belong to these jobs, with the columns of `COLUMNS`."""
        return db.rows(f"copy_{table}", ids=as_json(ids))


def file_url(kind: str, path: str) -> str:
    """A file's URL with its whole path, for people in another folder."""
    return f"{kind}:///{quote(os.path.realpath(path).replace(os.sep, '/'), safe='/:')}"


def key_of(source: str) -> str:
    """The key in rowlock_meta of the copy from the queue with this install id, on either side."""
    return f"copy:{source}"


def moved_facts(meta: Mapping[str, str]) -> dict[str, Any]:
    """What a doctor wants to know: where the queue has moved to, and whether that is still under way."""
    return {"moved": meta.get(MOVED), "moving": meta.get(key_of(meta["install_id"])) == "moving"}


def refuse_moved(db: Session) -> None:
    """Raise if the queue has moved."""
    moved = db.row("meta_value", key=MOVED)
    if moved is not None:
        raise StoreMoved(moved[0])


def as_json(values: Sequence[Any]) -> str:
    """A list for a parameter that takes one."""
    return msgspec.json.encode(values).decode()
