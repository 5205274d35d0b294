"""A user's table in each of its forms, and what a consumer may make of one of its cells."""

from __future__ import annotations

import json
from typing import Any

from rowlock import Flag, Retry, Status
from rowlock.consumers.consumer import Consumer
from rowlock.consumers.row import Row
from tests.consumers.lab import Lab

Cell = Any  # what the state column holds, or the status and the error
LATE = 10.0  # seconds that a retry waits


def always_as_late(attempts: int) -> Retry:
    return Retry(max_attempts=attempts, backoff="constant", base=LATE, jitter=False)


def nothing(row: Row) -> None:
    """A consumer's function that does nothing."""


class StateCells:
    """Recordings with a JSON state, of which each consumer has one member."""

    consumers = ("birdnet", "batdetect")
    keeps_failures = False  # in rowlock's own table
    gives_up = False  # on a row that has failed by that table: it is not due
    new: Cell = None
    # What somebody else may write there at any time, to clear a mark, to set one, or by mistake.
    theirs: tuple[Cell, ...] = (
        *[None] * 2,
        {},
        {"reviewer": "Ada"},
        {"reviewer": "Ada", "birdnet": None, "batdetect": None},
        {"batdetect": None, "birdnet": None},
        {"birdnet": True, "reviewer": "Bob"},
        {"batdetect": {"failed": "no sound", "attempts": 1}},
        *[[1]] * 2,
    )

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        lab.create()

    def consumer(self, name: str, attempts: int, batch: int | None) -> Consumer:
        chosen: dict[str, Any] = {"order_by": "time", "columns": ["id"], "batch": batch}
        retry = always_as_late(attempts)
        return Consumer(nothing, name, table=self._lab.table, state="analysis_state", retry=retry, **chosen)

    # -- the table, as its user sees it ----------------------------------------------------------

    def insert(self, key: int) -> None:
        self._lab.fill(key, key)

    def write(self, key: int, cell: Cell) -> None:
        self._lab.set_state(key, None if cell is None else json.dumps(cell))

    def delete(self, key: int | None = None) -> None:
        """The row with this key, or all."""
        self._lab.execute(f"DELETE FROM {self._lab.table}" + ("" if key is None else f" WHERE id = {key}"))

    def read(self) -> dict[int, Cell]:
        return self._lab.states()

    # -- what a consumer has to make of a cell ---------------------------------------------------

    def due(self, cell: Cell, name: str) -> bool:
        return cell is None or (isinstance(cell, dict) and cell.get(name) is None)

    def markable(self, cell: Cell, name: str) -> bool:
        """Whether the end of a run may still write there."""
        return self.due(cell, name)

    def taken(self, cell: Cell) -> Cell:
        return cell

    def given_back(self, cell: Cell) -> Cell:
        return cell

    def done(self, cell: Cell, name: str, result: Any) -> Cell:
        return {**(cell or {}), name: True if result is None else result}

    def failed(self, cell: Cell, name: str, reason: str, attempts: int) -> Cell:
        return {**(cell or {}), name: {"failed": reason, "attempts": attempts}}

    def has_failed(self, cell: Cell, name: str, kept: Any) -> bool:
        """Whether the row counts as failed; `kept` is the mark in rowlock's own table, if there is one."""
        mark = cell.get(name) if isinstance(cell, dict) else None
        return isinstance(mark, dict) and "failed" in mark

    def cleared(self, cell: Cell, name: str) -> Cell:
        return {member: value for member, value in cell.items() if member != name}


class StatusCells(StateCells):
    """Jobs with a status and an error; two consumers of such a table share its rows."""

    new = ("new", None)
    theirs = (
        *[("new", None)] * 4,
        ("busy", None),
        ("ok", None),
        ("bad", "no picture"),
        ("called off", None),
    )

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._table = f"{lab.prefix}jobs"
        lab.execute(f"CREATE TABLE {self._table} (id {lab.types['id']}, status TEXT, error TEXT)")

    def consumer(self, name: str, attempts: int, batch: int | None) -> Consumer:
        status = Status("status", due="new", running="busy", done="ok", failed="bad", error="error")
        retry = always_as_late(attempts)
        return Consumer(nothing, name, table=self._table, status=status, retry=retry, batch=batch)

    def insert(self, key: int) -> None:
        self._lab.execute(f"INSERT INTO {self._table} (id, status) VALUES (?, 'new')", (key,))

    def write(self, key: int, cell: Cell) -> None:
        self._lab.execute(f"UPDATE {self._table} SET status = ?, error = ? WHERE id = ?", (*cell, key))

    def delete(self, key: int | None = None) -> None:
        self._lab.execute(f"DELETE FROM {self._table}" + ("" if key is None else f" WHERE id = {key}"))

    def read(self) -> dict[int, Cell]:
        rows = self._lab.execute(f"SELECT id, status, error FROM {self._table}")
        return {key: (status, error) for key, status, error in rows}

    def due(self, cell: Cell, name: str) -> bool:
        return bool(cell[0] == "new")

    def markable(self, cell: Cell, name: str) -> bool:
        return bool(cell[0] == "busy")

    def taken(self, cell: Cell) -> Cell:
        return ("busy", cell[1])

    def given_back(self, cell: Cell) -> Cell:
        return ("new", cell[1]) if cell[0] == "busy" else cell

    def done(self, cell: Cell, name: str, result: Any) -> Cell:
        return ("ok", None)

    def failed(self, cell: Cell, name: str, reason: str, attempts: int) -> Cell:
        return ("bad", reason)

    def has_failed(self, cell: Cell, name: str, kept: Any) -> bool:
        return bool(cell[0] == "bad")

    def cleared(self, cell: Cell, name: str) -> Cell:
        return ("new", None)


class OwnMarkCells(StateCells):
    """Recordings whose users have a word of their own for failure."""

    keeps_failures = True

    def consumer(self, name: str, attempts: int, batch: int | None) -> Consumer:
        chosen: dict[str, Any] = {"order_by": "time", "columns": ["id"], "batch": batch, "failed": crashed}
        retry = always_as_late(attempts)
        return Consumer(nothing, name, table=self._lab.table, state="analysis_state", retry=retry, **chosen)

    def failed(self, cell: Cell, name: str, reason: str, attempts: int) -> Cell:
        return {**(cell or {}), name: crashed(reason, attempts)}

    def has_failed(self, cell: Cell, name: str, kept: Any) -> bool:
        return kept is not None and isinstance(cell, dict) and cell.get(name) == kept


def crashed(error: str, attempts: int) -> str:
    """A mark of the users' own."""
    return f"crashed: {error} ({attempts})"


class FlagCells(StateCells):
    """Photographs with a flag; two consumers of such a table share its rows."""

    keeps_failures = gives_up = True
    new = None
    theirs = (None, False, False, False, True)

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._table = f"{lab.prefix}photographs"
        lab.execute(f"CREATE TABLE {self._table} (id {lab.types['id']}, uploaded BOOLEAN)")

    def consumer(self, name: str, attempts: int, batch: int | None) -> Consumer:
        retry = always_as_late(attempts)
        return Consumer(nothing, name, table=self._table, flag=Flag("uploaded"), retry=retry, batch=batch)

    def insert(self, key: int) -> None:
        self._lab.execute(f"INSERT INTO {self._table} (id) VALUES (?)", (key,))

    def write(self, key: int, cell: Cell) -> None:
        self._lab.execute(f"UPDATE {self._table} SET uploaded = ? WHERE id = ?", (cell, key))

    def delete(self, key: int | None = None) -> None:
        self._lab.execute(f"DELETE FROM {self._table}" + ("" if key is None else f" WHERE id = {key}"))

    def read(self) -> dict[int, Cell]:
        rows = self._lab.execute(f"SELECT id, uploaded FROM {self._table}")
        return {key: None if flag is None else bool(flag) for key, flag in rows}

    def due(self, cell: Cell, name: str) -> bool:
        return cell is not True

    def done(self, cell: Cell, name: str, result: Any) -> Cell:
        return True

    def failed(self, cell: Cell, name: str, reason: str, attempts: int) -> Cell:
        return cell

    def has_failed(self, cell: Cell, name: str, kept: Any) -> bool:
        return kept is not None and cell is not True

    def cleared(self, cell: Cell, name: str) -> Cell:
        return cell
