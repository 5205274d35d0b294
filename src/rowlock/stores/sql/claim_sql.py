"""A strategy as SQL: puts its order into the statements by which a database claims.

Which fragments those are, and what makes a job eligible, is in each database's `.sql` files.
"""

from __future__ import annotations

from functools import lru_cache

from rowlock.stores.sql.statements import Statements
from rowlock.strategies import HIGHEST, OLDEST, Key, Strategy

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


class ClaimSql:
    """The claims of one database: its statements, with a strategy's order in them."""

    def __init__(self, statements: Statements, indexes: tuple[Order, ...], has_marks: bool = True) -> None:
        self._statements = statements
        self._indexes = indexes
        self.has_marks = has_marks  # a scan may begin where the last one ended
        self.isolated = statements.write("{take}", {"first": "{first_isolated}"})
        statements["claim_isolated"] = self.isolated
        if has_marks:
            for name, order in (("sweep_oldest", READY), ("sweep_newest", backwards(READY))):
                statements[name] = statements.write("{sweep}", {"within": order_sql(order)})

    @lru_cache(maxsize=256)  # noqa: B019 - there is one of these for each database
    def take(self, strategy: Strategy, marked: bool = False) -> str:
        """Take the first :count jobs of :queue, or of :level there; if `marked`, of what :marks name."""
        return self._statements.write("{take}", holes(strategy, () if marked else self._indexes))


def holes(strategy: Strategy, indexes: tuple[Order, ...], level: str = ":level") -> dict[str, str]:
    """What a strategy fills in, where there are these indexes; `level` is the one that was drawn."""
    # Within a level the priority is the same: named first, it is the order of an index.
    within = backwards(READY) if strategy.order[-1].descending else READY
    order = within if strategy.draw else strategy.order
    has_order = any(order in (index, backwards(index)) for index in indexes)  # read from either end
    # A range: with `priority =` PostgreSQL may walk the whole line and leave out the other levels (50 ms at
    # 200,000 jobs).
    by_range = f" AND priority >= {level} AND priority <= {level}"
    at_level = by_range if has_order else f" AND one_level.number = {level}"
    return {
        "first": "{first_by_index}" if has_order else "{first_by_levels}",
        "order": order_sql(order),
        "within": order_sql(within),
        "levels_in_order": order_sql(order[:1] if len(order) > 1 else (HIGHEST,)),
        "at_level": at_level if strategy.draw else "",
        "merged": "" if len(order) > 1 else "ORDER BY {order} ",
    }
