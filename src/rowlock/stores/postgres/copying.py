"""One side of `rowlock copy` that is a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rowlock.stores.postgres import schema
from rowlock.stores.postgres.inserting import stamp
from rowlock.stores.sql.copying import COLUMNS, TIMES, CopySide
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import qualified

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase
    from rowlock.stores.postgres.session import PostgresSession

_CLOSED = ("jobs", "history", "logs", "progress")


class PostgresCopySide(CopySide):
    """Rows go in by COPY."""

    version = schema.VERSION
    _folder = "rowlock.stores.postgres"
    _keys = "SELECT value FROM json_array_elements_text(:keys)"
    _freezes = ("freeze_function", *(f"freeze_{name}" for name in _CLOSED))
    _thaws = (*(f"thaw_{name}" for name in _CLOSED), "thaw_function")

    @property
    def address(self) -> str:
        """The URL without its password."""
        return self.store.url

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows in one COPY."""
        names = COLUMNS[table]
        times = [at for at, name in enumerate(names) if name in TIMES]
        place = cast("PostgresDatabase", self.store.database).address.schema
        statement = qualified(f"COPY rowlock_{table} ({', '.join(names)}) FROM STDIN", place)
        with cast("PostgresSession", tx).link.cursor.copy(statement) as stream:
            for row in rows:
                # PostgreSQL's text has no NUL; SQLite's has, if somebody else wrote it.
                values: list[Any] = [
                    one.replace("\0", "") if type(one) is str and "\0" in one else one for one in row
                ]
                for at in times:
                    if values[at] is not None:
                        values[at] = stamp(values[at])
                stream.write_row(values)

    def lock_numbers(self, tx: Session) -> int:
        """ALTER SEQUENCE keeps all others from drawing numbers until the transaction ends."""
        tx.run("lock_numbers")
        return super().lock_numbers(tx)

    def check_rights(self) -> None:
        """Closing it is tried in a transaction that is undone."""
        with self._using(self.store.database.undone()) as tx:
            self.freeze(tx)
