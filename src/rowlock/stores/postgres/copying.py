"""One side of `rowlock copy` that is a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rowlock.stores.postgres.inserting import copy, stamp
from rowlock.stores.sql.copying import COLUMNS, TIMES, CopySide
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase
    from rowlock.stores.postgres.session import PostgresSession


class PostgresCopySide(CopySide):
    """Rows go in by COPY."""

    _keys = "SELECT value FROM json_array_elements_text(:keys)"
    _freezes = ("freeze_function", "freeze_jobs", "freeze_history", "freeze_logs", "freeze_progress")
    _thaws = ("thaw",)

    @property
    def address(self) -> str:
        """The URL without its password."""
        return self.store.url

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows in one COPY."""
        times = [at for at, name in enumerate(COLUMNS[table]) if name in TIMES]

        def given(row: Sequence[Any]) -> list[Any]:
            # PostgreSQL's text has no NUL; SQLite's has, if somebody else wrote it.
            values: list[Any] = [
                one.replace("\0", "") if type(one) is str and "\0" in one else one for one in row
            ]
            for at in times:
                if values[at] is not None:
                    values[at] = stamp(values[at])
            return values

        place = cast("PostgresDatabase", self.store.database).address.schema
        copy(cast("PostgresSession", tx).connection, place, table, COLUMNS[table], map(given, rows))

    def lock_numbers(self, tx: Session) -> int:
        """ALTER SEQUENCE keeps all others from drawing numbers until the transaction ends."""
        tx.run("lock_numbers")
        return super().lock_numbers(tx)

    def check_rights(self) -> None:
        """Closing it is tried in a transaction that is undone."""
        with self._using(self.store.database.undone()) as tx:
            self.freeze(tx)
