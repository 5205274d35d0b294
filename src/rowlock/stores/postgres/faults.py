"""What PostgreSQL's errors mean for the person who sees them.

Only words: nothing here opens or retries anything.
"""

from __future__ import annotations

import psycopg

from rowlock.errors import (
    DataRefused,
    DiskTrouble,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreMissing,
    StoreMoved,
    StoreUnreachable,
    StoreUnusable,
)

# By SQLSTATE. What refuses a connection comes without one, so it is known by its words (in English).
_STATES: dict[str, tuple[type[StoreError], str]] = {
    "28P01": (
        StoreUnusable,
        "{address} refused the password: check it in the database's URL, in PGPASSWORD or in ~/.pgpass",
    ),
    "28000": (
        StoreUnusable,
        "{address} refused the user: check its name, its right to connect, and the server's pg_hba.conf",
    ),
    "3D000": (
        StoreUnusable,  # and not StoreMissing: `rowlock init` creates tables, not databases
        "there is no such database at {address}: create it (`createdb`), or check the URL",
    ),
    "3F000": (  # gone, or without the right to use it: PostgreSQL does not tell these apart
        StoreUnusable,
        "no schema for this user at {address}: let an administrator run what `rowlock init --sql` prints",
    ),
    "42501": (
        StoreUnusable,
        "the user lacks a right at {address}: let an administrator run what `rowlock init --sql` prints",
    ),
    "42P01": (StoreMissing, "there is no queue at {address}: run `rowlock init`"),
    "42703": (SchemaMismatch, "the queue's tables at {address} lack a column: run `rowlock upgrade`"),
    "53300": (
        StoreBusy,
        "{address} has too many clients: raise max_connections, run fewer workers, or use pgbouncer",
    ),
    "53100": (DiskTrouble, "the disk of {address} is full; nothing was written, free some space"),
    "53200": (StoreUnusable, "{address} is out of memory; nothing was written"),
    "25006": (StoreUnusable, "{address} is read-only (a standby?): use the URL of the primary"),
    "25P03": (
        StoreBusy,
        "this process stood still in a transaction, which {address} has undone; the call can be made again",
    ),
    "55P03": (
        StoreBusy,
        "something in the queue at {address} stayed locked; the call can simply be made again",
    ),
    "57014": (
        StoreBusy,
        "a statement at {address} took longer than it may; the call can simply be made again",
    ),
    "40001": (StoreBusy, "{address} could not order two transactions; the call can simply be made again"),
    "40P01": (
        StoreBusy,
        "two transactions at {address} blocked each other; the call can simply be made again",
    ),
    "pooler": (StoreUnusable, "{address} seems to be a pgbouncer: add ?pooler=transaction to the URL"),
}
_WORDS: tuple[tuple[str, str], ...] = (
    ("too many clients", "53300"),
    ("remaining connection slots", "53300"),
    ("too many connections", "53300"),
    ("no more connections allowed", "53300"),
    ("password authentication failed", "28P01"),
    ("SASL authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("permission denied for database", "28000"),
    ('role "', "28000"),
    ("no such database", "3D000"),
    ("does not exist", "3D000"),
    ("unsupported startup parameter", "pooler"),
)
# The classes of states that are not about what was to be written: the connection, the transaction, locks,
# rights, names, what the server runs out of, its shutdown, its own failures. All others are, also a user's.
_NOT_ABOUT_DATA = frozenset(
    (
        *("03", "08", "0A", "0B", "24", "25", "26", "28", "2D", "34", "3B", "3D", "3F", "40", "42"),
        *("53", "55", "57", "58", "72", "F0", "HV", "XX"),
    )
)
_MOVED = "RLMVD"  # raised by the triggers that `rowlock copy` leaves behind
_OF_A_STATEMENT = ("0A", "3F", "42")  # and if a trigger's statement met it, it is about the row after all


def explain(error: psycopg.Error, address: str) -> StoreError:
    """The store's own error for what PostgreSQL or the way to it raised."""
    text = " ".join(str(error).split())
    state = error.sqlstate
    if state == _MOVED:
        return StoreMoved(_said(error))
    if _is_about_data(error):
        return DataRefused(f"PostgreSQL refused at {address}: {text}", _said(error) or text)
    if state is None and isinstance(error, psycopg.OperationalError):
        state = next((code for words, code in _WORDS if words in text), None)
    if state in _STATES:
        kind, sentence = _STATES[state]
        # Without psycopg's and libpq's words about the way there, which the sentence has said.
        return kind(f"{sentence.format(address=address)} (PostgreSQL: {text.rpartition('FATAL: ')[2]})")
    if _is_of_the_way(error):
        # The first line: the others are libpq's guesses, and the same again for a host's other addresses.
        first = str(error).strip().partition("\n")[0].removeprefix("connection failed: ")
        return StoreUnreachable(f"{address} cannot be reached: {first or 'the connection was lost'}")
    return StoreError(f"PostgreSQL refused at {address}: {text}")


def _is_about_data(error: psycopg.Error) -> bool:
    """True if it is about what was to be written."""
    if error.sqlstate is None:  # the driver's own word, before it sent anything
        return isinstance(error, psycopg.DataError)
    kind = error.sqlstate[:2]
    return kind not in _NOT_ABOUT_DATA or (kind in _OF_A_STATEMENT and bool(error.diag.context))


def _said(error: psycopg.Error) -> str:
    """What the server said, without the lines about where in a function it was."""
    return " ".join(" ".join(filter(None, (error.diag.message_primary, error.diag.message_detail))).split())


def is_lost(error: BaseException | None) -> bool:
    """True if the connection broke, so that it is not known what the server did with the last statement."""
    if not isinstance(error, psycopg.Error) or not _is_of_the_way(error):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("57P", "08"))


def _is_of_the_way(error: psycopg.Error) -> bool:
    """True if it may be about the way to the server, and not only about a statement."""
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return True
    # The server always gives a state: this is libpq's word for an answer that it cannot read.
    return type(error) is psycopg.DatabaseError and error.sqlstate is None
