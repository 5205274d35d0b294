"""`rowlock copy`."""

from __future__ import annotations

import pytest

from rowlock import Rowlock
from rowlock.copying import copier
from tests.cli.commands import CommandLine


def test_a_queue_is_moved_and_the_numbers_of_both_sides_are_shown(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    for n in range(3):
        shop.enqueue("add", {"a": n, "b": 1})
    shop.cancel(1)
    told = rowlock.here("copy", "jobs.db", "sqlite:///new.db")
    words = [line.split() for line in told.out.splitlines()]
    assert told.out.startswith("moved 3 jobs from sqlite:///") and ["queued", "2", "2"] in words
    assert ["cancelled", "1", "1"] in words and "ids are the same" in told.out
    assert "new.db" in rowlock.here("enqueue", "add", "-d", "jobs.db", "--force", code=1).complaint
    assert rowlock.here("jobs", "-d", "new.db", "--json").json["jobs"][0]["id"] == 3
    refused = rowlock("worker", "shop:queue", code=1)
    assert "jobs.db has moved to sqlite:///" in refused.complaint

    found = rowlock.here("doctor", "-d", "jobs.db", "--json").json["findings"]
    assert any(one["check"] == "moved" and "use that database" in one["message"] for one in found)
    assert rowlock.here("copy", "jobs.db", "new.db", "--undo").out.startswith("jobs.db takes jobs again")
    rowlock.here("enqueue", "add", "-d", "jobs.db", "--force")


def test_a_merge_says_which_ids_are_which(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.enqueue("add", unique_key="k")
    rowlock.here("enqueue", "add", "-d", "new.db", "--unique-key", "k")
    refused = rowlock.here("copy", "jobs.db", "new.db", code=1)
    assert "new.db is not empty: with --merge" in refused.complaint
    told = rowlock.here("copy", "jobs.db", "new.db", "--merge", "--keep", "--json")
    assert told.json["ids"] == [{"first": 1, "last": 1, "shift": 1}]
    assert told.json["agrees"] is True and told.json["conflicts"][0]["holder"] == 1
    rowlock.here("enqueue", "add", "-d", "jobs.db", "--force")  # it was kept


def test_numbers_that_differ_are_a_failure_and_leave_the_source_unmarked(
    rowlock: CommandLine, shop: Rowlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.enqueue("add")
    write = copier.Copier._write

    def loses(self: copier.Copier, ids: object, *rest: object, **more: object) -> None:
        write(self, (), *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(copier.Copier, "_write", loses)
    told = rowlock.here("copy", "jobs.db", "new.db", code=1)
    assert "expected 1" in told.out
    assert "the numbers differ, so the source is not marked as moved" in told.err
    assert "is being moved" in rowlock.here("enqueue", "add", "-d", "jobs.db", "--force", code=1).complaint


def test_what_copies_nothing_takes_no_other_option(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.enqueue("add")
    rowlock.here("copy", "jobs.db", "new.db", "--undo", "--keep", code=2)
    missing = rowlock.here("copy", "nothing.db", "new.db", code=1)
    assert "no queue at nothing.db" in missing.complaint
    for words in (["nothing.duckdb", "new.db"], ["nothing.db", "new.db", "--undo"]):
        said = rowlock.refused_here("copy", *words)
        assert "FROM_URL" in said and "--database" not in said  # which is no option of this command
    assert not (rowlock.folder / "new.db").exists() and not (rowlock.folder / "nothing.db").exists()
