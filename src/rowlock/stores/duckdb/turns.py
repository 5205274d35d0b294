"""File mode: processes take turns with a DuckDB file. A turn: lock, open, one transaction, close, unlock.

All threads of a process share its turn; nobody opens the file outside of one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from rowlock.errors import DiskTrouble, StoreBusy, StoreError, StoreMissing, StoreUnusable
from rowlock.stores.duckdb.faults import FileHeld, explain
from rowlock.stores.duckdb.file_lock import FileLock
from rowlock.stores.duckdb.wake import look_at

if TYPE_CHECKING:
    from collections.abc import Hashable

    import duckdb

TAKES_TURNS = "rowlock_takes_turns"  # the execution option of an engine whose connections do
JOINED_FOR = 0.5  # seconds of a turn in which other threads of the process may join it
_FORKED = (
    "this process was forked while process {parent} had its turn with {path}, and cannot use that file: fork "
    "outside of turns, or start a new process (multiprocessing's `spawn`)"
)
_MARK = "rowlock_mark"
_TRY_OPEN_EVERY = 0.02  # seconds, while a process that takes no turns has the file open


class _Mine(threading.local):
    """The part of one thread in the turn."""

    depth = 0  # how often it has entered
    keeps: bool | None = None  # in a block of `together`: whether it keeps the turn by now


class SharedTurn:
    """The turn of this process with one file; its threads join it, and the last one out ends it."""

    def __init__(self, path: str, shown: str) -> None:
        self.path = path
        self._shown = shown
        self.lock = FileLock(path)
        self._state = threading.Condition()
        self._mine = _Mine()
        self._users = 0
        # Of these, tasks and users with a transaction of their own: nobody gains if we wait for them.
        self._long_users = 0
        self._opening = False
        self._root: Any = None
        self._made_in = os.getpid()
        self._began = 0.0
        self._after_own: Hashable = None  # how the files looked when our last turn ended
        self._others = 0  # how often somebody else has written, as far as we have seen
        self.turns = 0
        self.seconds = 0.0  # of the last turn, with the time to open and close, without that to wait for it

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: then the turn, and the file that is open in it, are the parent's."""
        return os.getpid() == self._made_in

    @contextmanager
    def taken(
        self, create: bool, timeout: float, is_long: bool = False
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor in a turn of this process."""
        self.enter(create, timeout, is_long)
        try:
            cursor = self._root.cursor()
            try:
                yield cursor
            finally:
                if self.is_of_this_process:
                    cursor.close()
        finally:
            self.leave(is_long)

    def enter(self, create: bool, timeout: float, is_long: bool = False) -> None:
        """Take a turn, or join the one that this process has."""
        if not self.is_of_this_process:
            raise StoreUnusable(_FORKED.format(path=self._shown, parent=self._made_in))
        deadline = time.monotonic() + timeout
        with self._state:
            while not self._may_join():
                if self._users == 0 and not self._opening:
                    self._opening = True
                    break
                if not self._state.wait(max(0.0, deadline - time.monotonic())):
                    raise self._busy(timeout)
            else:
                self._join(is_long)
                return
        root = None
        try:
            root = self._take(create, deadline, timeout)
        finally:
            with self._state:
                self._root, self._opening = root, False
                if root is not None:
                    self._join(is_long)
                self._state.notify_all()

    def leave(self, is_long: bool = False) -> None:
        """End this thread's part in the turn; the last one closes the file and lets others have it."""
        if not self.is_of_this_process:
            return
        with self._state:
            self._users -= 1
            self._long_users -= is_long
            self._others += is_long  # the user's own statements may have brought work
            self._mine.depth = max(0, self._mine.depth - 1)  # a lent connection may be closed by any thread
            if self._users:
                return
            root, self._root = self._root, None
            try:
                root.close()
            finally:
                self._after_own = look_at(self.path)
                self.turns += 1
                self.lock.release()
                self.seconds = time.monotonic() - self._began
                self._state.notify_all()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let what this thread does in the block be one turn, from its first statement on."""
        if self._mine.keeps is not None:
            yield
            return
        self._mine.keeps = False
        try:
            yield
        finally:
            kept, self._mine.keeps = self._mine.keeps, None
            if kept:
                self.leave()

    def change(self) -> Hashable:
        """A value that is different once somebody else has written; our own turns are no change."""
        turns, look = self.turns, look_at(self.path)
        if self.lock.is_held or turns != self.turns:  # nobody else can have written, and we have
            return self._others
        return self._others if look == self._after_own else (self._others, look)

    def never_close(self) -> None:
        """Keep the connection from being closed, also when this process ends: one reference too many."""
        if self._root is not None:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._root))

    def long_turn(self) -> tuple[float, float]:
        """How many seconds the longest turn of late was, and how long ago it ended."""
        record = self.lock.record()
        return record.long_seconds, time.monotonic() - record.long_ended

    def _may_join(self) -> bool:
        if self._root is None:
            return False
        return self._mine.depth > 0 or self._long_users > 0 or time.monotonic() - self._began < JOINED_FOR

    def _join(self, is_long: bool) -> None:
        self._users += 1
        self._long_users += is_long
        self._mine.depth += 1
        if self._mine.keeps is False:  # the block around this keeps the turn
            self._mine.keeps = True
            self._users += 1
            self._mine.depth += 1

    def _take(self, create: bool, deadline: float, timeout: float) -> Any:
        import duckdb as _  # noqa: F401 - it takes a while, and nobody is to wait for that

        if not create and not os.path.exists(self.path):
            raise StoreMissing(f"no queue at {self._shown}")
        try:
            got = self.lock.acquire(max(0.0, deadline - time.monotonic()))
        except OSError as error:
            raise _no_sidecar(self._shown, error) from error
        if not got:
            raise self._busy(timeout)
        self._others += look_at(self.path) != self._after_own
        try:
            return self._open(deadline)
        except BaseException:
            self.lock.release()
            raise

    def _open(self, deadline: float) -> Any:
        import duckdb

        waiting_since = time.monotonic()
        while True:
            self._began = time.monotonic()  # with the try that brings it
            try:
                return duckdb.connect(self.path)
            except duckdb.Error as error:
                said = explain(error, self._shown)
                if not isinstance(said, FileHeld):
                    raise said from error
                if time.monotonic() >= deadline:
                    raise _never_gives_a_turn(said, self._shown, time.monotonic() - waiting_since) from error
            time.sleep(_TRY_OPEN_EVERY)

    def _busy(self, timeout: float) -> StoreBusy:
        holder = self.lock.record().pid
        who = (
            "this process" if holder == os.getpid() else f"process {holder}" if holder else "another process"
        )
        return StoreBusy(
            f"{who} has its turn with {self._shown} for longer than {timeout:g} s; the call can simply be "
            "made again"
        )


class LentConnection:
    """A DuckDB connection in a turn of its user's; its `close` ends the turn."""

    def __init__(self, turn: SharedTurn, timeout: float) -> None:
        self._turn = ExitStack()
        self._connection = self._turn.enter_context(turn.taken(True, timeout, is_long=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def close(self) -> None:
        """Undo what is not committed, and let others have a turn."""
        self._turn.close()

    def __del__(self) -> None:
        self.close()


def _never_gives_a_turn(held: FileHeld, shown: str, seconds: float) -> FileHeld:
    return FileHeld(
        f"{shown} is open in {held.who}, which gave no turn in {seconds:.1f} s; DuckDB lets one process "
        "open a file at a time",
        "end that program, run this inside it with Rowlock(engine=...), or let it take turns, with "
        "rowlock.duckdb.create_engine(path), an engine without a pool, or `with app.connection() as con:`",
        held.who,
    )


def _no_sidecar(shown: str, error: OSError) -> StoreError:
    folder = os.path.dirname(shown) or "."
    kind = DiskTrouble if os.path.isdir(folder) else StoreUnusable
    return kind(
        f"the lock beside {shown} cannot be made ({error.strerror}): check that its folder exists and can "
        "be written"
    )


_guard = threading.Lock()
_shared: dict[str, SharedTurn] = {}


def shared_turn(path: str, shown: str) -> SharedTurn:
    """The turn of this process with this file: one for all apps and engines in it."""
    with _guard:
        real = os.path.realpath(path)
        if real not in _shared:
            _shared[real] = SharedTurn(real, shown)
        return _shared[real]


def _forget() -> None:
    """A forked child takes turns of its own, but for a file that its parent had open just then.

    DuckDB in the child believes that it has that file open: to open it again would give what the parent's
    memory held, and to close it would write that to the file. So it is left as it is until the child ends.
    """
    globals()["_guard"] = threading.Lock()
    for path, turn in list(_shared.items()):
        if turn.lock.is_held:
            turn.never_close()
        else:
            del _shared[path]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Turns:
    """The access of a store in file mode."""

    def __init__(self, path: str, shown: str, busy_timeout: float) -> None:
        self.path = os.path.realpath(path)
        self.shown = shown
        self._busy_timeout = busy_timeout

    @property
    def turn(self) -> SharedTurn:
        """The turn of this process."""
        return shared_turn(self.path, self.shown)

    @contextmanager
    def borrowed(self, create: bool = True, is_long: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection in a turn."""
        with self.turn.taken(create, self._busy_timeout, is_long) as connection:
            yield connection

    def together(self) -> AbstractContextManager[None]:
        """One turn for all that this thread does in the block."""
        return self.turn.together()

    def change(self) -> Hashable:
        """A value that is different once somebody else has written."""
        return self.turn.change()

    def facts(self) -> dict[str, Any]:
        """For the doctor: who has the file, and what a turn takes in which nothing is done."""
        holder, seconds = self._holder(), []
        for _ in range(3):
            with self.borrowed():
                pass
            seconds.append(self.turn.seconds)
        return {"mode": "file", "holder": holder, "turn_seconds": median(seconds)}

    def _holder(self) -> int | None:
        """This process, if it has the file open outside of turns, too; else nobody has.

        DuckDB opens a file once per process: what is attached in one turn is there in the next if somebody
        has kept the file open in between.
        """
        with self.borrowed() as connection:
            connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_MARK}")
            turns = self.turn.turns
        with self.borrowed() as connection:
            looked = "SELECT 1 FROM duckdb_databases() WHERE database_name = ?"
            is_kept = bool(connection.execute(looked, [_MARK]).fetchall()) and self.turn.turns > turns
            connection.execute(f"DETACH DATABASE IF EXISTS {_MARK}")
        return os.getpid() if is_kept else None

    def long_turn(self) -> tuple[float, float]:
        """How many seconds the longest turn of late was, and how long ago it ended."""
        return self.turn.long_turn()

    def close(self) -> None:
        """Nothing is open between turns."""
