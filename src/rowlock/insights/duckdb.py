"""What the doctor looks at in a DuckDB file.

Judges the facts that `DuckdbStore.facts()` brings; asks nothing itself.
"""

from __future__ import annotations

from typing import Any

from rowlock.insights.finding import Finding

_SLOW_TURN = 0.25  # seconds
_LONG_TURN, _LATELY = 10.0, 3600.0  # seconds
_MANY_CLASHES = 1_000


def looks(facts: dict[str, Any]) -> list[Finding]:
    """The mode, what a turn with the file costs, and how often transactions clash."""
    return [look(facts) for look in (_version, _mode, _turns, _clashes)]


def _version(facts: dict[str, Any]) -> Finding:
    return Finding("version", "ok", f"DuckDB {facts['server_version']}")


def _mode(facts: dict[str, Any]) -> Finding:
    milliseconds = 1000 * facts["turn_seconds"]
    if facts["mode"] == "owner":
        return Finding(
            "mode",
            "ok",
            f"owner mode: this process ({facts['holder']}) has the file open, and no other can; a cursor "
            f"takes {milliseconds:.1f} ms. Time to move on, with `rowlock copy`: when another process or "
            "machine has to work, too",
        )
    if facts["holder"] is not None:
        return Finding(
            "mode",
            "error",
            f"file mode, but this process ({facts['holder']}) has the file open outside of turns, too, so "
            "that no other gets one",
            "give the app what has it open, Rowlock(engine=...) or Rowlock(connection=...); or let that take "
            "turns, with rowlock.duckdb.create_engine(path) or `with app.connection() as con:`",
        )
    said = (
        f"file mode: processes take turns, nobody has the file in between; a turn takes {milliseconds:.0f} ms"
    )
    if facts["turn_seconds"] > _SLOW_TURN:
        return Finding(
            "mode",
            "warning",
            said,
            "let one process own the file, Rowlock(engine=engine) with the worker in its background, or "
            "move the queue to SQLite or PostgreSQL with `rowlock copy`",
        )
    return Finding(
        "mode", "ok", f"{said}. Time to move on, with `rowlock copy`: above {1000 * _SLOW_TURN:.0f} ms"
    )


def _turns(facts: dict[str, Any]) -> Finding:
    seconds, ago = facts["long_turn"]
    if seconds < _LONG_TURN or ago > _LATELY:
        return Finding("turns", "ok", "nobody has kept the others waiting for long")
    return Finding(
        "turns",
        "warning",
        f"{ago:.0f} s ago somebody had held the file for {seconds:.0f} s (or died in its turn, and that "
        "was noticed only then): everybody waited, also with heartbeats",
        "compute first and then write: keep transactions, sessions and `app.connection()` blocks short",
    )


def _clashes(facts: dict[str, Any]) -> Finding:
    count = facts["clashes"]
    if count > _MANY_CLASHES:
        return Finding(
            "clashes",
            "note",
            f"{count:,} transactions of this process were made again, because others changed the same rows",
            "keep your own transactions on rowlock's tables short, or move the queue with `rowlock copy`",
        )
    return Finding("clashes", "ok", f"{count} transactions of this process were made again")
