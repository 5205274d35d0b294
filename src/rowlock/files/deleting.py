"""How rows lose their files: mark, look again, unlink, confirm. What a crash left behind is put right.

Which rows these are is decided elsewhere. Every step can be the last one before a crash.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.error_text import describe, headline
from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files.folder import FileRefused, Found, OpenFolder
from rowlock.files.policy import Named
from rowlock.files.records import Cleaned, DeletedRow, FileTrouble
from rowlock.files.row_files import Keeping, RowFiles, texts_of, there
from rowlock.files.tables import Row, Session, Transaction, json_list

if TYPE_CHECKING:
    from rowlock.files.janitor import Janitor

_LONGEST_TRANSACTION = 0.2  # seconds: on SQLite everybody else waits for it
_CONFIRMED_AT_ONCE = 200


def step(name: str) -> None:
    """Between two steps; tests end the process here."""


class Reason(msgspec.Struct, frozen=True):
    """Why a limit asks for rows."""

    why: str
    age: float | None = None  # it asks only for those that are older


class _Emptied(msgspec.Struct, frozen=True):
    """A row whose files are gone, to be confirmed in its table."""

    row: Named
    gone: list[str]
    also_gone: list[str]
    deleted: DeletedRow | None  # None: they were gone already


class Deleter:
    """Deletes in one run of a janitor, with its folders open, and fills in the report of that run."""

    def __init__(
        self,
        janitor: Janitor,
        opened: OpenFolder,
        companions: OpenFolder,
        report: Cleaned,
        now: float | None,
    ) -> None:
        self._janitor = janitor
        self._policy = janitor.file_table
        self._companions = companions
        self.report = report
        self.now = now
        self.files = RowFiles(janitor.folder, opened, recover=not report.dry_run)

    def delete(self, rows: Sequence[Named], reason: Reason) -> None:
        """Delete the files of these rows, as far as they may go, and say so in the table.

        It ends early if files of a row went and the table could not be told. In a dry run it only says what
        would become of them, as far as that can be seen.
        """
        if self.report.dry_run:
            self._look(rows, reason)
            return
        marked = self._mark(rows, reason)
        step("marked")
        while marked and not self.report.unconfirmed:
            marked = self._unlink_and_confirm(marked, reason)
        if marked:
            with self._policy.writing(self.now) as tx:
                self._unmark(tx, [row.key for row in marked])

    def refuse(self, path: Any, why: object) -> None:
        """Report a file that is left alone."""
        self.report.refused.append(FileTrouble(str(path), str(why)))

    def _look(self, rows: Sequence[Named], reason: Reason) -> None:
        with self._policy.reading(self.now) as db:
            still = self._policy.still_deletable(db, [row.key for row in rows], reason.age, lock=False)
            keeping = self._keeping(db, still, reason)
        self.report.kept += len(rows) - len(still)
        for row in rows:
            if row.key in still:
                try:
                    files = there(self.files.deletable(row, keeping))
                except FileRefused as error:
                    self.refuse(error.path, error)
                    continue
                if files:
                    self.report.deleted.append(self._deleted(row, files, reason))

    # -- mark ------------------------------------------------------------------------------------

    def _mark(self, rows: Sequence[Named], reason: Reason) -> list[Named]:
        """Write down what is about to go, and look again that it may, in one transaction."""
        keys = [row.key for row in rows]
        policy = self._policy
        with (policy.writing if self._janitor.also is None else policy.writing_with_user)(self.now) as tx:
            marks = [mark for row in rows for mark in self._marks_for(tx, row, reason)]
            tx.each("mark_file", marks)
            still = self._policy.still_deletable(tx, keys, reason.age)
            self._unmark(tx, [key for key in keys if key not in still])
        self.report.kept += len(keys) - len(still)
        return [still[key] for key in keys if key in still]

    def _marks_for(self, tx: Session, row: Named, reason: Reason) -> list[dict[str, Any]]:
        files = [(0, path) for path in self.files.readable_paths(row)]
        files += [(1, path) for path in self._companions_of(tx, row.key)]
        common = {"janitor": self._janitor.name, "row_key": row.key, "reason": reason.why}
        return [common | {"companion": companion, "path": path} for companion, path in dict.fromkeys(files)]

    def _companions_of(self, tx: Session, key: Any) -> list[str]:
        """What else goes with the row, as the user's function says; paths below the companions' folder."""
        if self._janitor.also is None:
            return []
        assert isinstance(tx, Transaction)
        try:
            with tx.savepoint():
                given = list(self._janitor.also(self._whole_row(tx, key), tx.connection))
        except Exception as error:
            self._policy.raise_if_transient(error)
            self.refuse(f"companions of row {key}", f"also() raised {_one_line(error)}")
            return []
        found = []
        for value in given:
            if value is None:  # a column of the row's that is null
                continue
            try:
                found.append(self._janitor.also_folder.given(value))
            except FileRefused as error:
                self.refuse(value, error)
        return found

    # -- look again, unlink, confirm -------------------------------------------------------------

    def _unlink_and_confirm(self, marked: list[Named], reason: Reason) -> list[Named]:
        """With the rows locked, as many as there is time for in one transaction; returns those left over."""
        began = time.monotonic()
        emptied: list[_Emptied] = []
        seen = kept = 0
        try:
            with self._policy.writing_with_user(self.now) as tx:
                keys = [row.key for row in marked]
                still = self._policy.still_deletable(tx, keys, reason.age)
                companions = self._marks(tx, keys)
                keeping = self._keeping(tx, still, reason)
                for key in keys:
                    seen += 1
                    if key not in still or key not in companions:  # a consumer or another janitor has it
                        self._unmark(tx, [key])
                        kept += 1
                        continue
                    try:
                        files = self.files.deletable(still[key], keeping)
                        self._unlink(still[key], there(files), reason)
                    except FileRefused as error:
                        self.refuse(error.path, error)
                        self._unmark(tx, [key])
                        if self.report.unconfirmed:
                            break
                        continue
                    step("unlinked")
                    also_gone, freed = self._unlink_companions(companions[key])
                    was_there = there(files)
                    deleted = self._deleted(still[key], was_there, reason, freed) if was_there else None
                    emptied.append(_Emptied(still[key], list(files), also_gone, deleted))
                    if time.monotonic() - began > _LONGEST_TRANSACTION:
                        break
                confirmed = self._confirm(tx, emptied, each=self._janitor.on_deleted is not None)
                step("before commit")
            step("confirmed")
        except TRANSIENT:
            raise
        except StoreError:  # the table refuses one of them: each for itself, then
            if not emptied:
                raise
            for one in emptied:
                self._finish(one.row.key, one.deleted)
            tried = {one.row.key for one in emptied}
            return [row for row in marked if row.key not in tried]
        self.report.kept += kept
        self._count(confirmed)
        return marked[seen:]

    def _unlink(self, row: Named, files: Sequence[Found], reason: Reason) -> None:
        removed: list[Found] = []
        for found in files:
            try:
                self.files.opened.remove(found)
            except FileRefused as error:
                if removed:  # the row stays, without these
                    self.report.unconfirmed.append(self._deleted(row, removed, reason))
                raise FileRefused(str(error), found.path) from None
            removed.append(found)
            step("unlinked one")

    def _unlink_companions(self, paths: Sequence[str]) -> tuple[list[str], int]:
        """The row's own files are gone: its companions go, too; returns those, and the bytes freed."""
        gone: list[str] = []
        freed = 0
        for path in paths:
            try:
                found = self._companions.look(path, recover=True)
                if found is not None:
                    self._companions.remove(found)
                    freed += found.frees
                gone.append(path)
            except FileRefused as error:  # it does not keep the row
                self.refuse(path, error)
        step("companions")
        return gone, freed

    def _deleted(self, row: Named, files: Sequence[Found], reason: Reason, freed: int = 0) -> DeletedRow:
        return DeletedRow(
            key=self._policy.shown(row.key),
            paths=[found.path for found in files],
            size=sum(found.size for found in files),
            freed=freed + sum(found.frees for found in files),
            why=reason.why,
        )

    def _confirm(self, tx: Transaction, emptied: list[_Emptied], each: bool) -> list[_Emptied]:
        """Say in the user's table that files are gone, take the marks away; returns what could be confirmed.

        All in one statement, or each for itself: a savepoint and a statement for each took 11 of 21 s for
        6,000 rows on PostgreSQL. What the table then refuses keeps its mark for the next run.
        """
        if each:
            emptied = [one for one in emptied if self._confirm_one(tx, one)]
        else:
            self._tell_table(tx, [one.row.key for one in emptied])
        if not emptied:
            return []
        source, name = self._policy.source, self._janitor.name
        rows = [one.row for one in emptied]
        tx.run("forget_files", source=source, paths=json_list(texts_of(rows)))
        self._unmark(tx, [row.key for row in rows])
        if not self._policy.choice.tells_table:
            first = [texts[0] for row in rows if (texts := texts_of([row]))]
            tx.each("put_record", [self._policy.file_record(text, "deleted") for text in first])
        deleted = [one.deleted for one in emptied if one.deleted is not None]
        if deleted:
            freed = sum(row.freed for row in deleted)
            tx.run("add_to_service", kind="janitor", name=name, more=len(deleted), bytes=freed)
        return emptied

    def _confirm_one(self, tx: Transaction, one: _Emptied) -> bool:
        """One row, in a savepoint; False if the table or the user's function refuses."""
        try:
            with tx.savepoint():
                if self._janitor.on_deleted is not None:
                    paths = [self._janitor.folder.at(path) for path in one.gone]
                    paths += [self._janitor.also_folder.at(path) for path in one.also_gone]
                    self._janitor.on_deleted(self._whole_row(tx, one.row.key), paths, tx.connection)
                self._tell_table(tx, [one.row.key])
        except Exception as error:
            self._policy.raise_if_transient(error)
            self.refuse(", ".join(one.gone), f"its files are gone, but not confirmed: {_one_line(error)}")
            if one.deleted is not None:
                self.report.unconfirmed.append(one.deleted)
            return False
        return True

    def _tell_table(self, tx: Session, keys: list[Any]) -> None:
        if keys and self._policy.choice.tells_table:
            statement = "remove_rows" if self._policy.choice.remove_rows else "set_deleted"
            tx.run(statement, ids=json_list(keys))

    def _count(self, confirmed: Sequence[_Emptied]) -> None:
        """Their transaction is committed."""
        deleted = [one.deleted for one in confirmed if one.deleted is not None]
        self.report.deleted += deleted
        self.report.healed += len(confirmed) - len(deleted)

    # -- what was broken off ---------------------------------------------------------------------

    def finish_marked(self, declared: Collection[str]) -> None:
        """See to rows that an earlier run marked and did not confirm; it may have had another name."""
        with self._policy.reading() as db:
            others = {row[0] for row in db.rows("marking_janitors")} - {self._janitor.name, *declared}
        for other in others:
            self._adopt_marks(other)
        with self._policy.reading() as db:
            keys = [row[0] for row in db.rows("marked_rows", janitor=self._janitor.name)]
        for key in keys:
            self._finish(key)

    def _adopt_marks(self, other: str) -> None:
        """Take over marks of a janitor that is declared no more, if the same row here names the file."""
        with self._policy.writing(self.now) as tx:
            marks = tx.rows("marks_on_files", janitor=other)
            rows = self._policy.named(tx, list({key for key, _ in marks}))
            paths = {row.key: self.files.readable_paths(row) for row in rows}
            mine = json_list({key for key, path in marks if path in paths.get(key, ())})
            tx.run("adopt_marks", janitor=self._janitor.name, other=other, ids=mine)
            tx.run("unmark", janitor=other, ids=mine)

    def _finish(self, key: Any, deleted: DeletedRow | None = None) -> None:
        """Confirm a marked row if its files are gone; `deleted` is what this run has deleted of it."""
        with self._policy.writing_with_user(self.now) as tx:
            rows = self._policy.still_living(tx, [key])
            companions = self._marks(tx, [key])
            confirmed: list[_Emptied] | None = None
            if key not in companions:
                pass  # another process was faster
            elif key in rows and (gone := self.files.all_gone(rows[key])):
                also_gone, _ = self._unlink_companions(companions[key])
                confirmed = self._confirm(tx, [_Emptied(rows[key], gone, also_gone, deleted)], each=True)
            elif key in rows or tx.row("is_living", **self._policy.values(row_key=key)) is None:
                self._unmark(tx, [key])  # it is judged anew, like any other
            # Else a consumer has it at this moment: the next run looks again.
        if confirmed is not None:
            self._count(confirmed)
        elif deleted is not None:
            self.report.unconfirmed.append(deleted)
            self.refuse(", ".join(deleted.paths), "its files are gone, but not confirmed")

    def heal(self, rows: Sequence[Named]) -> None:
        """Mark rows as deleted whose files are all gone already; companions are left alone."""
        without_files = [row.key for row in rows if self.files.all_gone(row)]
        for start in range(0, len(without_files), _CONFIRMED_AT_ONCE):
            with self._policy.writing_with_user(self.now) as tx:
                some = without_files[start : start + _CONFIRMED_AT_ONCE]
                emptied = [
                    _Emptied(row, gone, [], None)
                    for row in self._policy.still_living(tx, some).values()
                    if (gone := self.files.all_gone(row))
                ]
                confirmed = self._confirm(tx, emptied, each=True)
            self._count(confirmed)

    # -- what is read in a transaction -----------------------------------------------------------

    def _keeping(self, db: Session, rows: dict[Any, Named], reason: Reason) -> Keeping:
        texts = texts_of(rows.values())
        needed = self._policy.needed_elsewhere(db, list(rows), texts, reason.age)
        found = db.rows("ingested_as", source=self._policy.source, paths=json_list(texts))
        return Keeping(needed, {path: (size, modified) for path, size, modified in found})

    def _marks(self, tx: Session, keys: Sequence[Any]) -> dict[Any, list[str]]:
        """Those of the rows that are marked, each with its companions."""
        found: dict[Any, list[str]] = {}
        marks = tx.rows("marks_of", janitor=self._janitor.name, ids=json_list(keys))
        for key, companion, path in marks:
            found.setdefault(key, []).extend([path] if companion else [])
        return found

    def _unmark(self, tx: Session, keys: Sequence[Any]) -> None:
        if keys:
            tx.run("unmark", janitor=self._janitor.name, ids=json_list(keys))

    def _whole_row(self, tx: Transaction, key: Any) -> Row:
        found = tx.plain_rows("whole_row", row_key=key)
        if not found:
            raise ConfigurationError(f"row {key} is gone")
        return Row(dict(zip(self._policy.types, found[0], strict=True)))


def _one_line(error: Exception) -> str:
    return headline(describe(error)) or type(error).__name__
