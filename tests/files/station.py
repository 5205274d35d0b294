"""A recording station: a folder, and a table whose rows name its files, on any store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.user_database import UserDatabase

SQLITE = {
    "id": "INTEGER PRIMARY KEY",
    "json": "TEXT",
    "time": "REAL",
    "bool": "BOOLEAN",
    "stamp": "TIMESTAMP",
}
POSTGRES = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "json": "jsonb",
    "time": "double precision",
    "bool": "boolean",
    "stamp": "timestamptz",
}
LONG_AGO = 1_000_000_000.0


class Station(UserDatabase):
    """The database and the folder as their owner sees them."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self.types = SQLITE if self.is_sqlite else POSTGRES
        self.folder = folder
        folder.mkdir()

    def create(self, unique: bool = True) -> None:
        """The table of recordings; the one with the number n was made n seconds after long ago."""
        kinds = self.types
        self.execute(
            f"CREATE TABLE {self.table} (id {kinds['id']}, time {kinds['time']}, "
            f"file_raw TEXT{' UNIQUE' if unique else ''}, file_processed TEXT, "
            f"analysis_state {kinds['json']}, "
            f"uploaded {kinds['bool']} DEFAULT false, local_deleted {kinds['bool']} DEFAULT false, "
            f"deleted_at {kinds['stamp']}, station TEXT)"
        )

    def write(
        self, path: str, content: bytes = b"RIFF", age: float = 100.0, now: float | None = None
    ) -> Path:
        """A file that was last written so many seconds ago."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self.touch(path, age, now)
        return target

    def touch(self, path: str, age: float, now: float | None = None) -> None:
        import time

        when = (time.time() if now is None else now) - age
        os.utime(self.folder / path, (when, when))

    def add(self, number: int, processed: bool = False, size: int = 4096, **values: Any) -> str:
        """A recording with its files and its row, as if somebody else had written them."""
        raw = f"{number:05}.wav"
        self.write(raw, b"x" * size)
        row: dict[str, Any] = {"time": LONG_AGO + number, "file_raw": raw, **values}
        if processed:
            self.write(f"p/{raw}", b"y" * size)
            row["file_processed"] = f"p/{raw}"
        marks = ", ".join("?" for _ in row)
        self.execute(f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        return raw

    def column(self, name: str) -> list[Any]:
        return [row[0] for row in self.execute(f"SELECT {name} FROM {self.table} ORDER BY time, id")]

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        listed = ", ".join(names)
        return [tuple(row) for row in self.execute(f"SELECT {listed} FROM {self.table} ORDER BY time, id")]

    def deleted(self) -> list[str]:
        """The raw files of rows that are marked as deleted."""
        return [raw for raw, gone in self.rows("file_raw", "local_deleted") if gone]

    def files(self) -> list[str]:
        there = (path for path in self.folder.rglob("*") if path.is_file() or path.is_symlink())
        return sorted(path.relative_to(self.folder).as_posix() for path in there)

    def marks(self) -> list[Any]:
        return self.execute(f"SELECT janitor, row_key, path FROM {self.prefix}rowlock_file_marks")

    def records(self) -> dict[str, str]:
        return dict(self.execute(f"SELECT path, state FROM {self.prefix}rowlock_files"))

    def close(self) -> None:
        self.close_apps()
        if not self.is_sqlite:  # the schema is used again by the next test
            schema = self.prefix.rstrip(".")
            mine = self.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = ? AND tablename NOT LIKE 'rowlock_%%'",
                (schema,),
            )
            for (name,) in mine:
                self.execute(f'DROP TABLE {self.prefix}"{name}"')
        super().close()
