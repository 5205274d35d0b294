"""A strategy as SQL: puts its order into the statements by which a database claims.

Which fragments those are, and what makes a job eligible, is in each database's `.sql` files.
"""

from __future__ import annotations

from functools import lru_cache

from rowlock.stores.sql.statements import Statements
from rowlock.strategies import HIGHEST, NEWEST, OLDEST, Key, Strategy

Order = tuple[Key, ...]
# After the queue: of `rowlock_jobs_ready`, which all databases have, and of `rowlock_jobs_line`.
READY: Order = (HIGHEST, OLDEST)
LINE: Order = (OLDEST,)


def order_sql(order: Order) -> str:
    """The order as it stands after ORDER BY."""
    return ", ".join(f"{key.column} DESC" if key.descending else key.column for key in order)


def backwards(order: Order) -> Order:
    """The order in which an index is read from its end."""
    return tuple(Key(key.column, not key.descending) for key in order)


def at_level(level: str) -> str:
    """Which jobs are of this level.

    A range: with `priority =` PostgreSQL may walk the whole line and leave out the other levels (50 ms at
    200,000 jobs).
    """
    return f" AND priority >= {level} AND priority <= {level}"


class ClaimSql:
    """The claims of one database: its statements, with a strategy's order in them."""

    def __init__(self, statements: Statements, indexes: tuple[Order, ...], has_marks: bool = True) -> None:
        self._statements = statements
        self._indexes = indexes
        self.isolated = statements["claim_isolated"]
        self.has_marks = has_marks  # a scan may begin where the last one ended
        if has_marks:
            for name, order in (("sweep_oldest", READY), ("sweep_newest", backwards(READY))):
                statements[name] = statements.write("{sweep}", {"within": order_sql(order)})

    @lru_cache(maxsize=256)  # noqa: B019 - there is one of these for each database
    def take(self, strategy: Strategy, one: bool, marked: bool = False) -> str:
        """Take the first :count jobs of :queue, or `one`; if `marked`, of those that :marks name."""
        words = {"first": first(strategy.order, () if marked else self._indexes), **holes(strategy)}
        by_levels = words["first"] == "{first_by_levels}"
        if one and by_levels and not marked and strategy.order in ((OLDEST,), (NEWEST,)):
            return self._statements.write("{take_one}", words)
        return self._statements.write("{take}", words)

    @lru_cache(maxsize=256)  # noqa: B019
    def take_at_level(self, strategy: Strategy, marked: bool = False) -> str:
        """Take the first :count jobs of :queue whose priority is :level; if `marked`, as above."""
        words = {"first": "{first_by_index}", **holes(strategy), "at_level": at_level(":level")}
        if marked:
            words |= {
                "first": "{first_by_levels}",
                "at_level": " AND one_level.number = :level",
                "merged": "",
            }
        return self._statements.write("{take}", words | {"order": words["within"]})


def first(order: Order, indexes: tuple[Order, ...]) -> str:
    """The fragment that finds the first jobs in this order: by an index that has it, or level by level."""
    has_order = any(order in (index, backwards(index)) for index in indexes)  # read from either end
    return "{first_by_index}" if has_order else "{first_by_levels}"


def holes(strategy: Strategy) -> dict[str, str]:
    """What a strategy fills in: its order, that of the jobs within a level and that of the levels."""
    newest = strategy.order[-1].descending
    return {
        "order": order_sql(strategy.order),
        # Within a level the priority is the same: named first, it is the order of an index.
        "within": order_sql(backwards(READY) if newest else READY),
        "levels_in_order": order_sql(strategy.order[:1] if len(strategy.order) > 1 else (HIGHEST,)),
        "first_position": "max" if newest else "min",
        "at_level": "",
        "merged": "" if len(strategy.order) > 1 else "ORDER BY {order} ",
    }
