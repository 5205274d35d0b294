"""One side of `rowlock copy` that is a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rowlock.stores.postgres import schema
from rowlock.stores.postgres.inserting import stamp
from rowlock.stores.sql.copying import COLUMNS, SHARED, TIMES, CopySide
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import qualified

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase
    from rowlock.stores.postgres.session import PostgresSession
    from rowlock.stores.sql.store import Store

_CLOSED = ("jobs", "history", "logs", "progress")


class PostgresCopySide(CopySide):
    """Rows go in by COPY."""

    version = schema.VERSION
    _freezes = ("freeze_function", *(f"freeze_{name}" for name in _CLOSED))
    _thaws = (*(f"thaw_{name}" for name in _CLOSED), "thaw_function")

    def __init__(self, database: PostgresDatabase, store: Store) -> None:
        words = {"keys": "SELECT value FROM json_array_elements_text(:keys)"}
        super().__init__(
            store, database.statements(SHARED, ("rowlock.stores.postgres", "copying.sql"), words=words)
        )
        self._schema = database.address.schema

    @property
    def address(self) -> str:
        """The URL without its password."""
        return self.store.url

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows in one COPY."""
        names = COLUMNS[table]
        times = [at for at, name in enumerate(names) if name in TIMES]
        statement = qualified(f"COPY rowlock_{table} ({', '.join(names)}) FROM STDIN", self._schema)
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
        return int(tx.row("last_number")[0])
