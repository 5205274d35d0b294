"""What is said of tables that somebody has emptied, as a test suite that truncates everything does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rowlock import Rowlock
from rowlock.cli.database import doctor
from rowlock.errors import SchemaMismatch
from rowlock.stores.address import store_for
from rowlock.stores.sql.statements import qualified

SAID = r"rowlock_meta is empty.*\?schema=rowlock"


@pytest.mark.file_mode
def test_tables_that_somebody_emptied_are_named_with_what_helps(new_url: str) -> None:
    app = Rowlock(new_url)
    opened = app.store
    opened.open()
    schema = getattr(getattr(opened.database, "address", None), "schema", None)
    with opened.database.write() as db:  # type: ignore[attr-defined]
        db.using({"empty": qualified("DELETE FROM rowlock_meta", schema)}).run("empty")
    fresh = store_for(new_url)
    for look in (
        opened.facts,
        opened.database.install_id,
        fresh.open,
        fresh.upgrade,
        lambda: doctor(new_url),
    ):
        with pytest.raises(SchemaMismatch, match=SAID):
            look()
    fresh.close()
    app.close()


def test_a_job_for_emptied_tables_is_refused_with_what_helps(tmp_path: Path) -> None:
    app = Rowlock(f"sqlite:///{tmp_path}/jobs.db")
    app.store.open()
    with sqlite3.connect(f"{tmp_path}/jobs.db", isolation_level=None) as mine:
        mine.execute("DELETE FROM rowlock_meta")
        add = app.task(lambda: None, name="add")  # type: ignore[call-overload]
        with pytest.raises(SchemaMismatch, match=SAID):
            add.using(mine).enqueue()
    mine.close()
    app.close()
