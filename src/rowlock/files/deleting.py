"""How rows lose their files: mark, look again, unlink, confirm. What a crash left behind is put right.

Which rows these are is decided elsewhere. Every step can be the last one before a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from rowlock.error_text import describe, headline
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files.file_records import record
from rowlock.files.folder import FileRefused, Folder, Found, OpenFolder
from rowlock.files.places import Places
from rowlock.files.policy import Named, Policy
from rowlock.files.records import DeletedRow, FileTrouble
from rowlock.files.row_files import Files, RowFiles, texts_of
from rowlock.files.tables import Row, Session, Transaction, json_list

_LONGEST_TRANSACTION = 0.2  # seconds: on SQLite everybody else waits for it
_CONFIRMED_AT_ONCE = 200


def step(name: str) -> None:
    """Between two steps; tests end the process here."""


class Candidate(msgspec.Struct, frozen=True):
    """A row that a limit asks for."""

    row: Named
    why: str


class Done(msgspec.Struct):
    """What became of some rows."""

    deleted: list[DeletedRow] = msgspec.field(default_factory=list)
    unconfirmed: list[DeletedRow] = msgspec.field(default_factory=list)  # gone, at least some of their files
    healed: int = 0  # their files were gone already
    kept: int = 0  # a consumer has them, or they are not deletable any more
    refused: list[FileTrouble] = msgspec.field(default_factory=list)

    def add(self, other: Done) -> None:
        """Put together what became of these and of others."""
        self.deleted += other.deleted
        self.unconfirmed += other.unconfirmed
        self.healed += other.healed
        self.kept += other.kept
        self.refused += other.refused

    def refuse(self, path: Any, why: object) -> None:
        """A file was left alone."""
        self.refused.append(FileTrouble(str(path), str(why)))


class _Removed(msgspec.Struct, frozen=True):
    """A row whose files are gone, to be confirmed in its table."""

    row: Named
    gone: list[str]
    also_gone: list[str]
    deleted: DeletedRow | None  # None: they were gone already


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
        self._places = places
        self._folder = folder
        self._also = also
        self._also_folder = also_folder
        self._on_deleted = on_deleted
        self._dry_run = dry_run
        self._stack = ExitStack()
        self.files: RowFiles
        self._companions: OpenFolder

    def __enter__(self) -> Deleter:
        opened = self._companions = self._stack.enter_context(self._folder.opened())
        if self._also is not None and self._also_folder.path != self._folder.path:
            self._companions = self._stack.enter_context(self._also_folder.opened())
        self.files = RowFiles(self._places, opened, recover=not self._dry_run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def delete(self, candidates: Sequence[Candidate], age: float | None, now: float | None) -> Done:
        """Delete the files of these rows, as far as they may go, and say so in the table.

        It ends early if files of a row went and the table could not be told. In a dry run it only says what
        would become of them, as far as that can be seen.
        """
        done = Done()
        if self._dry_run:
            self._look(candidates, age, now, done)
            return done
        marked = self._mark(candidates, age, now, done)
        step("marked")
        while marked and not done.unconfirmed:
            marked = self._unlink_and_confirm(marked, age, now, done)
        if marked:
            with self._policy.table.writing(now) as tx:
                self._unmark(tx, [one.row.key for one in marked])
        return done

    def _look(
        self, candidates: Sequence[Candidate], age: float | None, now: float | None, done: Done
    ) -> None:
        with self._policy.table.reading(now) as db:
            keys = [one.row.key for one in candidates]
            still = self._policy.still_deletable(db, keys, age, lock=False)
            needed, ingested = self._what_keeps_files(db, still, age)
        for one in candidates:
            if one.row.key not in still:
                done.kept += 1
                continue
            try:
                files = self.files.deletable(one.row, needed, ingested)
            except FileRefused as error:
                done.refuse(error.path, error)
                continue
            if files.there:
                done.deleted.append(self._deleted(one, files, files.frees))

    # -- mark ------------------------------------------------------------------------------------

    def _mark(
        self, candidates: Sequence[Candidate], age: float | None, now: float | None, done: Done
    ) -> list[Candidate]:
        """Write down what is about to go, and look again that it may, in one transaction."""
        by_key = {one.row.key: one for one in candidates}
        with self._policy.table.writing(now, with_connection=self._also is not None) as tx:
            marks = [mark for one in candidates for mark in self._marks_for(tx, one, done)]
            tx.session.each("mark_file", marks)
            still = self._policy.still_deletable(tx.session, list(by_key), age)
            self._unmark(tx, [key for key in by_key if key not in still])
        done.kept += len(by_key) - len(still)
        return [Candidate(still[key], one.why) for key, one in by_key.items() if key in still]

    def _marks_for(self, tx: Transaction, one: Candidate, done: Done) -> list[dict[str, Any]]:
        files = [(0, path) for path in self.files.readable_paths(one.row)]
        files += [(1, path) for path in self._companions_of(tx, one.row.key, done)]
        common = {"janitor": self._name, "row_key": one.row.key, "reason": one.why}
        return [common | {"companion": companion, "path": path} for companion, path in dict.fromkeys(files)]

    def _companions_of(self, tx: Transaction, key: Any, done: Done) -> list[str]:
        """What else goes with the row, as the user's function says; paths below the companions' folder."""
        if self._also is None:
            return []
        try:
            with tx.savepoint():
                given = list(self._also(self._whole_row(tx, key), tx.connection))
        except Exception as error:
            self._policy.table.raise_if_transient(error)
            done.refuse(f"companions of row {key}", f"also() raised {_one_line(error)}")
            return []
        places = Places(self._also_folder.path, "relative")
        found = []
        for value in given:
            try:
                found.append(str(places.given(value)))
            except FileRefused as error:
                done.refuse(value, error)
        return found

    # -- look again, unlink, confirm -------------------------------------------------------------

    def _unlink_and_confirm(
        self, marked: list[Candidate], age: float | None, now: float | None, done: Done
    ) -> list[Candidate]:
        """With the rows locked, as many as there is time for in one transaction; returns those left over."""
        began = time.monotonic()
        removed: list[_Removed] = []
        seen, new = 0, Done()
        try:
            with self._policy.table.writing(now, with_connection=True) as tx:
                keys = [one.row.key for one in marked]
                still = self._policy.still_deletable(tx.session, keys, age)
                companions = self._marks(tx, keys)
                needed, ingested = self._what_keeps_files(tx.session, still, age)
                for one in marked:
                    seen += 1
                    key = one.row.key
                    if key not in still or key not in companions:  # a consumer or another janitor has it
                        self._unmark(tx, [key])
                        new.kept += 1
                        continue
                    try:
                        files = self.files.deletable(still[key], needed, ingested)
                        freed = self._unlink(one, files.there, new)
                    except FileRefused as error:
                        new.refuse(error.path, error)
                        self._unmark(tx, [key])
                        if new.unconfirmed:
                            break
                        continue
                    step("unlinked")
                    removed.append(self._removed(one, files, freed, companions[key], new))
                    if time.monotonic() - began > _LONGEST_TRANSACTION:
                        break
                self._confirm(tx, removed, new)
                step("before commit")
            step("confirmed")
        except TRANSIENT:
            raise
        except StoreError:  # the table refuses one of them: each for itself, then
            if not removed:
                raise
            done.refused += new.refused
            done.unconfirmed += new.unconfirmed
            tried = {one.row.key: one.deleted for one in removed}
            self._finish_each(tried, now, done)
            return [one for one in marked if one.row.key not in tried]
        done.add(new)
        return marked[seen:]

    def _unlink(self, one: Candidate, files: Sequence[Found], done: Done) -> int:
        """Remove a row's files; returns the bytes that this frees."""
        removed: list[Found] = []
        for found in files:
            try:
                self.files.opened.remove(found)
            except FileRefused as error:
                if removed:  # the row stays, without these
                    part = Files(removed, [])
                    done.unconfirmed.append(self._deleted(one, part, part.frees))
                raise FileRefused(str(error), found.path) from None
            removed.append(found)
            step("unlinked one")
        return sum(found.frees for found in removed)

    def _removed(
        self, one: Candidate, files: Files, freed: int, companions: Sequence[str], done: Done
    ) -> _Removed:
        """The row's own files are gone: its companions go, too."""
        also_gone: list[str] = []
        for path in companions:
            try:
                found = self._companions.look(path, recover=True)
                if found is not None:
                    self._companions.remove(found)
                    freed += found.frees
                also_gone.append(path)
            except FileRefused as error:  # it does not keep the row
                done.refuse(path, error)
        step("companions")
        deleted = self._deleted(one, files, freed) if files.there else None
        return _Removed(one.row, files.paths, also_gone, deleted)

    def _deleted(self, one: Candidate, files: Files, freed: int) -> DeletedRow:
        return DeletedRow(
            key=self._policy.shown(one.row.key),
            paths=[found.path for found in files.there],
            size=sum(found.size for found in files.there),
            freed=freed,
            why=one.why,
        )

    def _confirm(self, tx: Transaction, removed: list[_Removed], done: Done, alone: bool = False) -> None:
        """Say in the user's table that files are gone; count them, and take the marks away.

        Rows of which no function is told go in one statement: a savepoint and a statement for each took 11 of
        21 s for 6,000 rows on PostgreSQL. `alone`, what the table refuses keeps its mark for the next run.
        """
        if self._on_deleted is None and not alone:
            self._tell_table(tx, [one.row.key for one in removed])
        else:
            tried, removed = removed, []
            for one in tried:
                if self._confirm_one(tx, one, done):
                    removed.append(one)
                elif one.deleted is not None:
                    done.unconfirmed.append(one.deleted)
        if not removed:
            return
        rows = [one.row for one in removed]
        paths = json_list(texts_of(rows))
        tx.session.run("forget_files", source=self._policy.table.source, paths=paths)
        self._unmark(tx, [row.key for row in rows])
        if not self._policy.choice.tells_table:
            first = [texts[0] for row in rows if (texts := texts_of([row]))]
            source = self._policy.table.source
            tx.session.each("put_record", [record(source, self._name, text, "deleted") for text in first])
        deleted = [one.deleted for one in removed if one.deleted is not None]
        if deleted:
            freed = sum(row.freed for row in deleted)
            tx.session.run("add_to_service", kind="janitor", name=self._name, more=len(deleted), bytes=freed)
        done.deleted += deleted
        done.healed += len(removed) - len(deleted)

    def _confirm_one(self, tx: Transaction, one: _Removed, done: Done) -> bool:
        """One row, in a savepoint; False if the table or the user's function refuses."""
        try:
            with tx.savepoint():
                if self._on_deleted is not None:
                    paths = [Path(self._folder.path, *path.split("/")) for path in one.gone]
                    paths += [Path(self._also_folder.path, *path.split("/")) for path in one.also_gone]
                    self._on_deleted(self._whole_row(tx, one.row.key), paths, tx.connection)
                self._tell_table(tx, [one.row.key])
        except Exception as error:
            self._policy.table.raise_if_transient(error)
            done.refuse(", ".join(one.gone), f"its files are gone, but not confirmed: {_one_line(error)}")
            return False
        return True

    def _tell_table(self, tx: Transaction, keys: list[Any]) -> None:
        if keys and self._policy.choice.tells_table:
            statement = "remove_rows" if self._policy.choice.remove_rows else "set_deleted"
            tx.session.run(statement, ids=json_list(keys))

    # -- what was broken off ---------------------------------------------------------------------

    def finish_marked(self, now: float | None, declared: Collection[str]) -> Done:
        """See to rows that an earlier run marked and did not confirm; it may have had another name."""
        done = Done()
        self._adopt_marks(now, declared)
        with self._policy.table.reading() as db:
            keys = [row[0] for row in db.rows("marked_rows", janitor=self._name)]
        self._finish_each(dict.fromkeys(keys), now, done)
        return done

    def _adopt_marks(self, now: float | None, declared: Collection[str]) -> None:
        """Take over marks of janitors that are declared no more, if the same row here names the file."""
        with self._policy.table.reading() as db:
            others = {row[0] for row in db.rows("marking_janitors")} - {self._name, *declared}
        for other in others:
            with self._policy.table.writing(now) as tx:
                marks = tx.session.rows("all_marks_of", janitor=other)
                rows = self._policy.named(tx.session, list({mark[0] for mark in marks}))
                paths = {row.key: self.files.readable_paths(row) for row in rows}
                mine = {
                    key for key, companion, path, _ in marks if not companion and path in paths.get(key, ())
                }
                adopted = [
                    {
                        "janitor": self._name,
                        "row_key": key,
                        "companion": companion,
                        "path": path,
                        "reason": why,
                    }
                    for key, companion, path, why in marks
                    if key in mine
                ]
                tx.session.each("mark_file", adopted)
                if mine:
                    tx.session.run("unmark", janitor=other, ids=json_list(mine))

    def _finish_each(self, rows: Mapping[Any, DeletedRow | None], now: float | None, done: Done) -> None:
        """Each row in a transaction of its own; beside its key, what this run has deleted of it."""
        for key, deleted in rows.items():
            with self._policy.table.writing(now, with_connection=True) as tx:
                if not self._finish(tx, key, deleted, done) and deleted is not None:
                    done.unconfirmed.append(deleted)
                    done.refuse(", ".join(deleted.paths), "its files are gone, but not confirmed")

    def _finish(self, tx: Transaction, key: Any, deleted: DeletedRow | None, done: Done) -> bool:
        """False if the table could not be asked about this row."""
        rows = self._policy.still_living(tx.session, [key])
        companions = self._marks(tx, [key])
        if key not in companions:  # another process was faster
            return False
        if key in rows:
            if (files := self.files.gone(rows[key])) is not None:
                removed = self._removed(Candidate(rows[key], ""), files, 0, companions[key], done)
                self._confirm(tx, [msgspec.structs.replace(removed, deleted=deleted)], done, alone=True)
                return True
        elif tx.session.row("is_living", **self._policy.values(row_key=key)) is not None:
            return False  # a consumer has it at this moment: the next run looks again
        self._unmark(tx, [key])  # it is judged anew, like any other
        return False

    def heal(self, rows: Sequence[Named], now: float | None) -> Done:
        """Mark rows as deleted whose files are all gone already; companions are left alone."""
        done = Done()
        gone = [row.key for row in rows if self.files.gone(row) is not None]
        for start in range(0, len(gone), _CONFIRMED_AT_ONCE):
            with self._policy.table.writing(now, with_connection=True) as tx:
                some = gone[start : start + _CONFIRMED_AT_ONCE]
                removed = [
                    _Removed(row, files.paths, [], None)
                    for row in self._policy.still_living(tx.session, some).values()
                    if (files := self.files.gone(row)) is not None
                ]
                self._confirm(tx, removed, done, alone=True)
        return done

    # -- what is read in a transaction -----------------------------------------------------------

    def _what_keeps_files(
        self, db: Session, rows: dict[Any, Named], age: float | None
    ) -> tuple[set[str], dict[str, tuple[int, int]]]:
        """Files that other rows must keep, and how files were when they were ingested."""
        texts = texts_of(rows.values())
        needed = self._policy.needed_elsewhere(db, list(rows), texts, age)
        found = db.rows("ingested_as", source=self._policy.table.source, paths=json_list(texts))
        return needed, {path: (size, modified) for path, size, modified in found}

    def _marks(self, tx: Transaction, keys: Sequence[Any]) -> dict[Any, list[str]]:
        """Those of the rows that are marked, each with its companions."""
        found: dict[Any, list[str]] = {}
        for key, companion, path in tx.session.rows("marks_of", janitor=self._name, ids=json_list(keys)):
            found.setdefault(key, []).extend([path] if companion else [])
        return found

    def _unmark(self, tx: Transaction, keys: Sequence[Any]) -> None:
        if keys:
            tx.session.run("unmark", janitor=self._name, ids=json_list(keys))

    def _whole_row(self, tx: Transaction, key: Any) -> Row:
        found = tx.plain_rows(self._policy.table.statements["whole_row"], {"row_key": key})
        if not found:
            raise ConfigurationError(f"row {key} is gone")
        return Row(dict(zip(self._policy.table.types, found[0], strict=True)))


def _one_line(error: Exception) -> str:
    return headline(describe(error)) or type(error).__name__
