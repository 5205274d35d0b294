"""What a database has of its own: all that a folder under `stores/` implements is named here.

A store is `Store(database)`. Its verbs are written once, over this class; a new database implements the
abstract methods, and the others where it has a better way.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rowlock.errors import ConfigurationError, StoreError, StoreMissing
from rowlock.job import Exchange, Inserted, NewJob, Outcome
from rowlock.outage import Outage
from rowlock.stores.base import Wake
from rowlock.stores.source import OneStatement
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.schema_versions import (
    Migration,
    check,
    emptied,
    facts_in,
    migrate,
    migrations_in,
    single_statements,
)
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.user_connection import OwnTransaction, UserConnection

if TYPE_CHECKING:
    from rowlock.stores.sql.copying import CopySide
    from rowlock.stores.sql.store import Store

F = TypeVar("F", bound=Callable[..., Any])

NOT_OUTERMOST = (
    "the session is inside a transaction of somebody else, so that its commit commits nothing: give "
    "ctx.transaction() a session or connection that begins its own"
)


def size_of(path: str) -> int:
    """The size of a file in bytes; 0 if it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class _Undone(Exception):
    """Ends a transaction of which nothing is kept."""


class Database(ABC):
    """One database that holds a queue."""

    url: str
    shown: str  # where it is, in messages
    package: str  # its folder here
    dialect: str  # of the connections that users bring: "sqlite" or "postgresql"
    claim_sql: ClaimSql  # how it claims by a strategy
    sees_every_commit = False  # whoever writes to it, a waiting poller notices
    no_queue = "no queue at {} (the file is there, rowlock's tables are not)"

    def __init__(self) -> None:
        self._install_id: str | None = None
        self._opened_in: int | None = None  # the process whose look at the tables was good
        self.outage = Outage()  # of all workers and relays in this process

    # -- its life --------------------------------------------------------------------------------

    def open(self, create: bool = True) -> None:
        """Make sure the queue's tables are there; without `create`, raise `StoreMissing` if not."""
        if self._opened_in != os.getpid():
            self._look_at_tables(create)
            self._opened_in = os.getpid()

    def _look_at_tables(self, create: bool) -> None:
        """Create the tables if they are missing (and may be), and see that this code can use them."""
        with self._before_tables(create) as db:
            facts = facts_in(db)
            if facts is None and create:
                with self._changing_tables(db, creating=True) as run:
                    if facts_in(db) is None:  # no other process was faster
                        run(self._tables_sql())
                facts = facts_in(db)
            check(self._there(facts), self.shown)

    def upgrade(self, steps: Sequence[Migration] | None = None) -> tuple[int, int]:
        """Apply the migrations that are still missing, all or none; returns the version before and after."""
        missing = migrations_in(self.package) if steps is None else steps
        with self._before_tables(create=False) as db, self._changing_tables(db, creating=False) as run:
            return migrate(missing, self._there(facts_in(db)), self.shown, run)

    def _there(self, facts: dict[str, str] | None) -> dict[str, str]:
        if facts is None:
            raise StoreMissing(self.no_queue.format(self.shown))
        return facts

    @abstractmethod
    def ddl(self) -> str:
        """The SQL that creates the tables, for people to read and run; opens nothing."""

    def _tables_sql(self) -> str:
        """The statements of it."""
        return self.ddl()

    @abstractmethod
    def _before_tables(self, create: bool) -> AbstractContextManager[Session]:
        """A session where the tables may still be missing; without `create`, raises if there is no file."""

    @abstractmethod
    def _changing_tables(
        self, db: Session, creating: bool
    ) -> AbstractContextManager[Callable[[str], object]]:
        """A transaction for one process at a time, in which the given function runs scripts."""

    def close(self) -> None:
        """Close every connection of this process; a later call opens anew."""
        self._close_connections()
        self._opened_in = None

    @abstractmethod
    def _close_connections(self) -> None:
        """Close those of this process."""

    # -- sessions --------------------------------------------------------------------------------

    @abstractmethod
    def write(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A transaction that commits durably when the block ends, and rolls back if it raises."""

    @abstractmethod
    def read(self, now: float | None = None) -> AbstractContextManager[Session]:
        """A session for reads that hold nothing open between statements."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Session]:
        """A session whose reads all see the same moment; for a few short reads that belong together."""

    @contextmanager
    def undone(self) -> Iterator[Session]:
        """A transaction of which nothing is kept: to try something out."""
        with suppress(_Undone), self.write() as session:
            yield session
            raise _Undone

    def unhurried(self) -> AbstractContextManager[Session]:
        """A session for statements that may take hours, such as those that build an index."""
        return self.write()

    @abstractmethod
    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        """The queue's statements and those of the sources, in this database's words.

        `style` is that of a user's connection ("named" or "pyformat"); without it, the database's own.
        """

    @abstractmethod
    def explained(self, error: Exception) -> StoreError | None:
        """An error of the driver as the store's own; None if it is something else."""

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Let errors of the driver leave the block as the store's own."""
        try:
            yield
        except Exception as error:
            known = self.explained(error)
            if known is None:
                raise
            raise known from error

    def retried(self, verb: F) -> F:
        """The verb, made again where a transaction may be undone because another was faster."""
        return verb

    # -- jobs ------------------------------------------------------------------------------------

    def numbers(self, tx: Session, count: int) -> Sequence[int]:
        """Draw `count` fresh numbers from the sequence that ids and positions share."""
        return sorted(row[0] for row in tx.rows("draw_numbers", count=count))

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        """Write the jobs, all or none, durably, and tell those who sleep."""

    def finish_many(self, tx: Session, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Write many first-try completions at once, if there is a way; returns the outcomes that are left."""
        return outcomes

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        """An exchange of jobs in one statement; None: it takes a transaction."""
        return None

    # -- what tells pollers that there is work -----------------------------------------------------

    @abstractmethod
    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        """How the poller of this worker learns of new work; `ring` may be called from any thread."""

    def hint(  # noqa: B027 - most have nothing to tell
        self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()
    ) -> None:
        """Tell one who sleeps that there may be work, where a commit alone does not tell.

        One who takes one of these queues and knows one of these tasks; none given: any.
        """

    def wake_readers(self, tx: Session, name: str) -> None:  # noqa: B027
        """Tell all who sleep and go by this name that there may be work."""

    def got_up(self, worker: str) -> None:  # noqa: B027
        """This worker has claimed: it does not wait to be told any more."""

    def together(self) -> AbstractContextManager[None]:
        """One turn for all that this thread does in the block, where a database is used by turns."""
        return nullcontext()

    def kept_others_waiting(self, careful_age: float) -> bool:
        """True just after this process has kept the workers of others from beating."""
        return False

    def check_open(self, tx: Session) -> None:  # noqa: B027 - most refuse the write itself
        """Raise if the queue has moved, before something is written in a user's transaction."""

    def limit_idle(self, lease: float) -> None:  # noqa: B027 - most end with their processes
        """A transaction that stands still is to end within the lease: nobody could rescue what it locks."""

    # -- users' connections, and a task's own --------------------------------------------------------

    @abstractmethod
    def session_on(self, user: UserConnection) -> Session:
        """A session that runs the queue's statements there."""

    @abstractmethod
    def transaction(self, timeout: float | None) -> OwnTransaction:
        """A transaction on a connection of its own, for a task to write its own rows in."""

    def commit_on(self, user: UserConnection) -> None:
        """Commit a user's transaction; if the answer is lost, look up how it ended."""
        driver: Any = user.key  # before the commit: asked after it, a session would begin anew
        user.commit()
        still_open = False
        with suppress(Exception):  # closed by now: then it is committed
            still_open = bool(driver.in_transaction)
        if still_open:
            raise ConfigurationError(NOT_OUTERMOST)

    def is_file_of(self, user: UserConnection) -> bool:
        """True if the user's connection is to the file that this database is."""
        return False

    def make_tables_on(self, user: UserConnection, tx: Session) -> bool:
        """The queue's tables are not to be seen there: make them, if that is where they belong."""
        if not self.is_file_of(user):
            return False
        # By the user's own connection: it may hold the write lock, or its transaction may be older than what
        # another one makes. If it is rolled back, the queue was never there.
        for statement in single_statements(re.sub(r"--.*", "", self.ddl())):
            user.run(statement, {})
        return True

    @abstractmethod
    def copying(self, store: Store) -> CopySide:
        """How `rowlock copy` reads and writes it."""

    # -- itself ----------------------------------------------------------------------------------

    def install_id(self) -> str:
        """The random name of this queue, by which a foreign database is recognised."""
        if self._install_id is None:
            with self.read() as db:
                self._install_id = self.identity(db)
        return self._install_id

    def identity(self, db: Session) -> str:
        """The random name of the queue that this session sees."""
        row = db.row("meta_value", key="install_id")
        if row is None:
            raise emptied(self.url)
        return str(row[0])

    def checkpoint(self) -> None:  # noqa: B027 - most do it by themselves
        """Let the database tidy its own files, where it needs to be asked."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a doctor wants to know about this kind of database: where it is, its versions, its state."""

    @abstractmethod
    def backup(self, target: str) -> int:
        """Copy the database, consistently, while it is in use; returns the bytes written."""
