"""What the doctor looks at in a DuckDB file.

Judges the facts that `DuckdbStore.facts()` brings; asks nothing itself.
"""

from __future__ import annotations

from rowlock.insights.finding import Facts, Verdict, error, note, ok, warning

_SLOW_TURN = 0.25  # seconds
_LONG_TURN, _LATELY = 10.0, 3600.0  # seconds
_MANY_CLASHES = 1_000


def _version(facts: Facts) -> Verdict:
    return ok(f"DuckDB {facts['server_version']}")


def _mode(facts: Facts) -> Verdict:
    milliseconds = 1000 * facts["turn_seconds"]
    if facts["mode"] == "owner":
        return ok(
            f"owner mode: this process ({facts['holder']}) has the file open, and no other can; a cursor "
            f"takes {milliseconds:.1f} ms. Time to move on, with `rowlock copy`: when another process or "
            "machine has to work, too"
        )
    if facts["holder"] is not None:
        return error(
            f"file mode, but this process ({facts['holder']}) has the file open outside of turns, too, so "
            "that no other gets one",
            "give the app what has it open, Rowlock(engine=...) or Rowlock(connection=...); or let that take "
            "turns, with rowlock.duckdb.create_engine(path) or `with app.connection() as con:`",
        )
    said = (
        f"file mode: processes take turns, nobody has the file in between; a turn takes {milliseconds:.0f} ms"
    )
    if facts["turn_seconds"] <= _SLOW_TURN:
        return ok(f"{said}. Time to move on, with `rowlock copy`: above {1000 * _SLOW_TURN:.0f} ms")
    return warning(
        said,
        "let one process own the file, Rowlock(engine=engine) with the worker in its background, or "
        "move the queue to SQLite or PostgreSQL with `rowlock copy`",
    )


def _turns(facts: Facts) -> Verdict:
    seconds, ago = facts["long_turn"]
    if seconds < _LONG_TURN or ago > _LATELY:
        return ok("nobody has kept the others waiting for long")
    return warning(
        f"{ago:.0f} s ago somebody had held the file for {seconds:.0f} s (or died in its turn, and that "
        "was noticed only then): everybody waited, also with heartbeats",
        "compute first and then write: keep transactions, sessions and `app.connection()` blocks short",
    )


def _clashes(facts: Facts) -> Verdict:
    count = facts["clashes"]
    if count <= _MANY_CLASHES:
        return ok(f"{count} transactions of this process were made again")
    return note(
        f"{count:,} transactions of this process were made again, because others changed the same rows",
        "keep your own transactions on rowlock's tables short, or move the queue with `rowlock copy`",
    )


# The mode, what a turn with the file costs, and how often transactions clash.
CHECKS = {"version": _version, "mode": _mode, "turns": _turns, "clashes": _clashes}
