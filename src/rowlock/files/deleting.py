"""How rows lose their files: mark, look again, unlink, confirm. What a crash left behind is put right.

Which rows these are is decided elsewhere. Every step can be the last one before a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files.folder import FileRefused, Folder, Found, OpenFolder
from rowlock.files.places import Places
from rowlock.files.policy import Named, Policy
from rowlock.files.records import DeletedRow, FileTrouble
from rowlock.files.tables import Row, Session, Transaction
from rowlock.headline import describe, headline

_LONG = 0.2  # seconds after which a transaction ends: on SQLite everybody else waits for it
_HEALED_AT_ONCE = 200
GONE_ALREADY = "gone already"


def step(name: str) -> None:
    """Between two steps; tests end the process here."""


class Candidate(msgspec.Struct, frozen=True):
    """A row that a limit asks for."""

    row: Named
    why: str


class Done(msgspec.Struct):
    """What became of some rows."""

    deleted: list[DeletedRow] = msgspec.field(default_factory=list)
    healed: int = 0
    kept: int = 0  # somebody has them, or they are not deletable any more
    refused: list[FileTrouble] = msgspec.field(default_factory=list)
    confirmed: list[Named] = msgspec.field(default_factory=list)  # in this transaction, and still marked
    untold: list[Any] = msgspec.field(
        default_factory=list
    )  # keys of these of which the table knows nothing yet
    counted: int = 0  # how many of the deleted are in the janitor's numbers already


class _Files(msgspec.Struct, frozen=True):
    """The files of a row: those that are there, and those that are gone."""

    there: list[Found]
    gone: list[str]


class Deleter:
    """Deletes for one janitor; used inside one run, with its folders open."""

    def __init__(
        self,
        policy: Policy,
        name: str,
        places: Places,
        folder: Folder,
        also: Callable[..., Iterable[Any]] | None,
        also_folder: Folder,
        on_deleted: Callable[..., Any] | None,
        dry_run: bool,
    ) -> None:
        self._policy = policy
        self._name = name
        self._recover = not dry_run
        self._places = places
        self._folder = folder
        self._also = also
        self._also_folder = also_folder
        self._on_deleted = on_deleted
        self._stack = ExitStack()
        self._opened: OpenFolder
        self._opened_also: OpenFolder

    def __enter__(self) -> Deleter:
        self._opened = self._stack.enter_context(self._folder.opened())
        self._opened_also = self._opened
        if self._also is not None and self._also_folder.path != self._folder.path:
            self._opened_also = self._stack.enter_context(self._also_folder.opened())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- looking at files ------------------------------------------------------------------------

    def look(self, row: Named) -> _Files:
        """The files that a row names; raises FileRefused if one of them must not be touched."""
        there: list[Found] = []
        gone: list[str] = []
        for text in row.paths:
            try:
                path = self._places.read(text)
                found = self._opened.look(path, recover=self._recover)
            except FileRefused as error:
                raise FileRefused(str(error), str(text)) from None
            if found is None:
                gone.append(path)
            elif found.path not in (one.path for one in there):
                there.append(found)
        return _Files(there, gone)

    def _judged(self, row: Named, needed: set[str], ingested: dict[str, tuple[int, int]]) -> _Files:
        """The row's files, if all of them may go."""
        if shared := needed & set(row.paths):
            raise FileRefused("another row that is not to be deleted names it, too", min(shared))
        files = self.look(row)
        for found in files.there:
            before = ingested.get(self._places.written(found.path))
            if before is not None and before != (found.size, found.modified):
                raise FileRefused("it has changed since it was ingested", found.path)
        return files

    def _deleted(self, one: Candidate, files: _Files, freed: int) -> DeletedRow:
        paths = [found.path for found in files.there]
        size = sum(found.size for found in files.there)
        key = self._policy.shown(one.row.key)
        return DeletedRow(key=key, paths=paths, size=size, freed=freed, why=one.why)

    def total_size(self, pages: Iterable[list[Named]], left_out: set[Any]) -> int:
        """The size of all files that these rows name, each counted once."""
        sizes = {found.path: found.size for found in self._opened.scan(lambda path: True, _ignore)}
        total = 0
        for page in pages:
            for row in page:
                if self._policy.shown(row.key) not in left_out:
                    total += sum(sizes.pop(path, 0) for path in self._readable(row))
        return total

    def would_delete(self, candidates: Sequence[Candidate], age: float | None, now: float | None) -> Done:
        """What `delete` would do, as far as can be seen without doing anything."""
        done = Done()
        keys = [one.row.key for one in candidates]
        texts = [text for one in candidates for text in one.row.paths if isinstance(text, str)]
        with self._policy.table.reading(self._policy.statements, now) as db:
            still = self._policy.look_deletable(db, keys, age)
            needed = self._policy.needed_elsewhere(db, list(still), texts, age)
            ingested = self._ingested_as(db, texts)
        for one in candidates:
            if one.row.key not in still:
                done.kept += 1
                continue
            try:
                files = self._judged(one.row, needed, ingested)
            except FileRefused as error:
                done.refused.append(FileTrouble(error.path, str(error)))
                continue
            if files.there:
                done.deleted.append(self._deleted(one, files, sum(found.frees for found in files.there)))
        return done

    # -- deleting --------------------------------------------------------------------------------

    def delete(self, candidates: Sequence[Candidate], age: float | None, now: float | None) -> Done:
        """Delete the files of these rows, as far as they may go, and say so in the table."""
        done = Done()
        marked = self._mark(candidates, age, now, done)
        step("marked")
        while marked:
            before = len(done.deleted)
            try:
                marked = self._unlink_and_confirm(marked, age, now, done)
            except TRANSIENT:
                raise
            except StoreError:  # the table refuses one of them: each for itself, then
                tried, done.untold, done.confirmed = done.untold, [], []
                if not tried:
                    raise
                del done.deleted[before:]
                self._finish_each(tried, now, done)
                marked = [one for one in marked if one.row.key not in tried]
        return done

    def _mark(
        self, candidates: Sequence[Candidate], age: float | None, now: float | None, done: Done
    ) -> list[Candidate]:
        """Write down what is about to go, and look again that it may, in one transaction."""
        by_key = {one.row.key: one for one in candidates}
        with self._writing(now, with_connection=self._also is not None) as tx:
            marks = [mark for one in candidates for mark in self._marks_for(tx, one, done)]
            tx.session.each("mark_file", marks)
            still = self._policy.still_deletable(tx.session, list(by_key), age)
            self._unmark(tx, [key for key in by_key if key not in still])
        done.kept += len(by_key) - len(still)
        return [Candidate(still[key], one.why) for key, one in by_key.items() if key in still]

    def _marks_for(self, tx: Transaction, one: Candidate, done: Done) -> list[dict[str, Any]]:
        files = [(0, path) for path in self._readable(one.row)]
        files += [(1, path) for path in self._companions(tx, one.row.key, done)]
        common = {"janitor": self._name, "row_key": one.row.key, "reason": one.why}
        return [common | {"companion": companion, "path": path} for companion, path in dict.fromkeys(files)]

    def _readable(self, row: Named) -> list[str]:
        """The row's files as far as their paths can be read; what is wrong with others is said later."""
        found = []
        for text in row.paths:
            try:
                found.append(self._places.read(text))
            except FileRefused:
                continue
        return found

    def _companions(self, tx: Transaction, key: Any, done: Done) -> list[str]:
        """What else goes with the row, in the user's own words; paths below the companions' folder."""
        if self._also is None:
            return []
        try:
            with tx.savepoint():
                given = list(self._also(self._whole_row(tx, key), tx.connection))
        except Exception as error:
            self._raise_if_passing(error)
            done.refused.append(FileTrouble(f"companions of row {key}", f"also() raised {_line(error)}"))
            return []
        places = Places(self._also_folder.path, "relative")
        found = []
        for value in given:
            try:
                found.append(str(places.given(value)))
            except FileRefused as error:
                done.refused.append(FileTrouble(str(value), str(error)))
        return found

    def _unlink_and_confirm(
        self, marked: list[Candidate], age: float | None, now: float | None, done: Done
    ) -> list[Candidate]:
        """Look once more with the rows locked, unlink, confirm; returns those that there was no time for."""
        began = time.monotonic()
        left: list[Candidate] = []
        keys = [one.row.key for one in marked]
        with self._writing(now, with_connection=True) as tx:
            still = self._policy.still_deletable(tx.session, keys, age)
            marks = self._marks(tx, keys)
            texts = [text for row in still.values() for text in row.paths if isinstance(text, str)]
            needed = self._policy.needed_elsewhere(tx.session, list(still), texts, age)
            ingested = self._ingested_as(tx.session, texts)
            for place, one in enumerate(marked):
                key = one.row.key
                if key not in still or key not in marks:  # taken by somebody, or finished by another janitor
                    self._unmark(tx, [key])
                    done.kept += 1
                    continue
                self._delete_row(tx, Candidate(still[key], one.why), marks[key], needed, ingested, done)
                if time.monotonic() - began > _LONG:
                    left = marked[place + 1 :]
                    break
            self._settle(tx, done)
            step("before commit")
        step("confirmed")
        return left

    def _delete_row(
        self,
        tx: Transaction,
        one: Candidate,
        marked: list[str],
        needed: set[str],
        ingested: dict[str, tuple[int, int]],
        done: Done,
    ) -> None:
        key = one.row.key
        try:
            files = self._judged(one.row, needed, ingested)
            freed = self._unlink(self._opened, files.there)
        except FileRefused as error:
            done.refused.append(FileTrouble(error.path, str(error)))
            self._unmark(tx, [key])
            return
        step("unlinked")
        self._finish(tx, one, files, marked, freed, done, alone=False)

    def _unlink(self, opened: OpenFolder, files: Sequence[Found]) -> int:
        freed = 0
        for found in files:
            try:
                opened.remove(found)
            except FileRefused as error:
                raise FileRefused(str(error), found.path) from None
            freed += found.frees
            step("unlinked one")
        return freed

    def _finish(
        self,
        tx: Transaction,
        one: Candidate,
        files: _Files,
        marked: list[str],
        freed: int,
        done: Done,
        alone: bool,
    ) -> None:
        """The row's own files are gone: its companions go, too, and the table is told."""
        gone = [*(found.path for found in files.there), *files.gone]
        also_gone, also_freed = self._unlink_companions(marked, done)
        step("companions")
        if self._confirm(tx, one.row, gone, also_gone, done, alone):
            if files.there:
                done.deleted.append(self._deleted(one, files, freed + also_freed))
            else:
                done.healed += 1

    def _unlink_companions(self, marked: list[str], done: Done) -> tuple[list[str], int]:
        gone: list[str] = []
        freed = 0
        for path in marked:
            try:
                found = self._opened_also.look(path, recover=True)
                if found is not None:
                    self._opened_also.remove(found)
                    freed += found.frees
                gone.append(path)
            except FileRefused as error:  # it does not keep the row
                done.refused.append(FileTrouble(path, str(error)))
        return gone, freed

    def _confirm(
        self, tx: Transaction, row: Named, gone: list[str], also_gone: list[str], done: Done, alone: bool
    ) -> bool:
        """Say in the user's table that the files are gone; False if that, or the user's function, raised.

        Not `alone`, rows of which no function is told wait for the end of the transaction: a savepoint and a
        statement for each took 11 of 21 s for 6,000 rows on PostgreSQL.
        """
        if not alone and self._on_deleted is None:
            done.untold.append(row.key)
            done.confirmed.append(row)
            return True
        try:
            with tx.savepoint():
                if self._on_deleted is not None:
                    places = [Path(self._folder.path, *path.split("/")) for path in gone]
                    places += [Path(self._also_folder.path, *path.split("/")) for path in also_gone]
                    self._on_deleted(self._whole_row(tx, row.key), places, tx.connection)
                self._tell_table(tx, [row.key])
        except Exception as error:
            self._raise_if_passing(error)
            # Its mark stays: the next run confirms it.
            done.refused.append(
                FileTrouble(", ".join(gone), f"its files are gone, but not confirmed: {_line(error)}")
            )
            return False
        done.confirmed.append(row)
        return True

    def _tell_table(self, tx: Transaction, keys: list[Any]) -> None:
        if self._policy.choice.remove_rows:
            tx.session.run("remove_rows", ids=_json(keys))
        elif self._policy.choice.deleted is not None:
            tx.session.run("set_deleted", ids=_json(keys))

    def _settle(self, tx: Transaction, done: Done) -> None:
        """At the end of a transaction: what is confirmed in it is not marked any more, and counted."""
        if done.untold:
            self._tell_table(tx, done.untold)
            done.untold = []
        rows, done.confirmed = done.confirmed, []
        texts = [[text for text in row.paths if isinstance(text, str)] for row in rows]
        if rows:
            paths = _json([text for some in texts for text in some])
            tx.session.run("forget_files", source=self._policy.table.name, paths=paths)
            self._unmark(tx, [row.key for row in rows])
        if self._policy.choice.deleted is None and not self._policy.choice.remove_rows:
            tx.session.each("put_record", [self._remembered(some[0]) for some in texts if some])
        new, done.counted = done.deleted[done.counted :], len(done.deleted)
        if new:
            freed = sum(row.freed for row in new)
            tx.session.run("add_to_service", kind="janitor", name=self._name, more=len(new), bytes=freed)

    def _remembered(self, text: str) -> dict[str, Any]:
        """Where neither a column nor a missing row tells it, rowlock's own table does."""
        return {
            "source": self._policy.table.name,
            "path": text,
            "state": "deleted",
            "name": self._name,
            "size": None,
            "modified": None,
            "failures": 0,
            "run_at": None,
            "error": None,
        }

    # -- putting right what was broken off -------------------------------------------------------

    def finish_marked(self, now: float | None) -> Done:
        """See to rows that an earlier run marked and did not confirm."""
        done = Done()
        with self._policy.table.reading(self._policy.statements) as db:
            keys = [row[0] for row in db.rows("marked_rows", janitor=self._name)]
        self._finish_each(keys, now, done)
        return done

    def _finish_each(self, keys: Sequence[Any], now: float | None, done: Done) -> None:
        for key in keys:
            with self._writing(now, with_connection=True) as tx:
                self._finish_marked_row(tx, key, done)
                self._settle(tx, done)

    def _finish_marked_row(self, tx: Transaction, key: Any, done: Done) -> None:
        rows = self._policy.still_living(tx.session, [key])
        marks = self._marks(tx, [key])
        if key not in marks:  # another process was faster
            return
        files = None
        if key in rows:
            try:
                files = self.look(rows[key])
            except FileRefused:
                files = None
        elif tx.session.row("is_living", **self._policy.values(row_key=key)) is not None:
            return  # somebody has it at this moment: the next run looks again
        if files is None or files.there or not files.gone:
            self._unmark(tx, [key])  # it is judged anew, like any other
            return
        self._finish(tx, Candidate(rows[key], GONE_ALREADY), files, marks[key], 0, done, alone=True)

    def has_files(self, rows: Sequence[Named]) -> bool:
        """Whether a file of these rows is there, or something that is in its place."""
        return any(not self._is_gone(row) for row in rows)

    def heal(self, rows: Sequence[Named], now: float | None) -> Done:
        """Mark rows as deleted whose files are all gone already; companions are left alone."""
        done = Done()
        gone = [row.key for row in rows if self._is_gone(row)]
        for start in range(0, len(gone), _HEALED_AT_ONCE):
            with self._writing(now, with_connection=True) as tx:
                some = gone[start : start + _HEALED_AT_ONCE]
                for row in self._policy.still_living(tx.session, some).values():
                    if self._is_gone(row):
                        paths = [self._places.read(text) for text in row.paths]
                        done.healed += self._confirm(tx, row, paths, [], done, alone=True)
                self._settle(tx, done)
        return done

    def _is_gone(self, row: Named) -> bool:
        try:
            files = self.look(row)
        except FileRefused:
            return False
        return bool(files.gone) and not files.there

    # -- what is read in a transaction -----------------------------------------------------------

    def _writing(self, now: float | None, with_connection: bool) -> Any:
        return self._policy.table.writing(self._policy.statements, now, with_connection)

    def _marks(self, tx: Transaction, keys: Sequence[Any]) -> dict[Any, list[str]]:
        """Those of the rows that are marked, each with its companions."""
        found: dict[Any, list[str]] = {}
        for key, companion, path in tx.session.rows("marks_of", janitor=self._name, ids=_json(list(keys))):
            found.setdefault(key, []).extend([path] if companion else [])
        return found

    def _unmark(self, tx: Transaction, keys: Sequence[Any]) -> None:
        if keys:
            tx.session.run("unmark", janitor=self._name, ids=_json(list(keys)))

    def _ingested_as(self, db: Session, texts: Sequence[str]) -> dict[str, tuple[int, int]]:
        """How the files were when they were ingested, as far as rowlock did that."""
        rows = db.rows("ingested_as", source=self._policy.table.name, paths=_json(list(texts)))
        return {path: (size, modified) for path, size, modified in rows}

    def _whole_row(self, tx: Transaction, key: Any) -> Row:
        found = tx.plain_rows(self._policy.statements["whole_row"], {"row_key": key})
        if not found:
            raise ConfigurationError(f"row {key} is gone")
        return Row(dict(zip(self._policy.table.types, found[0], strict=True)))

    def _raise_if_passing(self, error: Exception) -> None:
        """A lost server is not the fault of the user's function."""
        explained = self._policy.table.explained(error) or error
        if isinstance(explained, TRANSIENT):
            raise explained from error


def _line(error: Exception) -> str:
    return headline(describe(error)) or type(error).__name__


def _json(value: list[Any]) -> str:
    return msgspec.json.encode(value).decode()


def _ignore(path: str, why: str) -> None:
    """What cannot be read has no size."""
