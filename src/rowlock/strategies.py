"""The orders in which queued jobs are claimed, as data, and their registry.

Knows no database: `rowlock.stores.sql.claim_sql` writes a strategy into the claims of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Literal, Protocol, TypeVar

import msgspec

from rowlock.errors import ConfigurationError


class Ordered(Protocol):
    """What a strategy orders: a claim, or anything else with these two numbers."""

    @property
    def priority(self) -> int: ...
    @property
    def position(self) -> int: ...


Some = TypeVar("Some", bound=Ordered)


class Key(msgspec.Struct, frozen=True):
    """One column by which jobs are ordered; `position` is the order in which they came into their queue."""

    column: Literal["priority", "position"]
    descending: bool = False


HIGHEST, LOWEST = Key("priority", descending=True), Key("priority")
OLDEST, NEWEST = Key("position"), Key("position", descending=True)
_ORDERS = {
    (*first, last) for first in ((), (HIGHEST,), (LOWEST,)) for last in (OLDEST, NEWEST)
}  # an order ends with the position, which no two jobs share


class Weight(msgspec.Struct, frozen=True):
    """How often a priority level is drawn: in proportion to `level + plus`, and never less than `least`."""

    plus: int = 1
    least: int = 1

    def of(self, level: int) -> int:
        """The weight of a priority level."""
        return max(self.least, self.plus + level)

    def sql(self, level: str) -> str:
        """The same, as SQL for any database."""
        above = f"{level} > {self.least - self.plus}"
        return f"CASE WHEN {above} THEN {level} + {self.plus} ELSE {self.least} END"


class Strategy(msgspec.Struct, frozen=True):
    """An order of claiming; with `draw`, levels are drawn by their weights, and the order is that within one.

    Levels are drawn, not rows: `ORDER BY priority * random()` reads the whole backlog (320 ms at a million
    rows) and gives the top level 99.85 % of the picks.
    """

    name: str
    order: tuple[Key, ...]
    draw: Weight | None = None

    def __post_init__(self) -> None:
        # Names are shown and stored, columns and weights become SQL: nothing else may come through.
        if not isinstance(self.name, str) or not self.name.replace("_", "").isalnum():
            raise ConfigurationError(f"strategy {self.name!r}: a name has letters, digits and underscores")
        known = isinstance(self.order, tuple) and self.order in _ORDERS
        if not known or (self.draw and len(self.order) > 1):
            raise ConfigurationError(
                f"strategy {self.name}: an order is OLDEST or NEWEST, after HIGHEST or LOWEST unless levels "
                "are drawn"
            )
        weights = (self.draw.plus, self.draw.least) if self.draw else (1, 1)
        if [type(one) for one in weights] != [int, int] or weights[1] < 1:
            raise ConfigurationError(f"strategy {self.name}: weights are whole numbers, and 1 at least")

    def arranged(self, claims: Iterable[Some]) -> list[Some]:
        """One queue's claims in the order in which they are to be run; an UPDATE returns them in none."""
        result = list(claims)
        for key in reversed(self.order):  # one sort by a tuple of all keys takes ten times as long
            result.sort(key=attrgetter(key.column), reverse=key.descending)
        if self.draw is None:
            return result
        # As if each had been drawn by itself: any order of the levels is as likely as any other.
        levels = [claim.priority for claim in result]
        of_level = {level: iter([one for one in result if one.priority == level]) for level in set(levels)}
        random.shuffle(levels)
        return [next(of_level[level]) for level in levels]

    def drawn(self, levels: Sequence[int], count: int) -> list[int]:
        """Draw `count` of these levels, each as often as its weight says."""
        weight = self.draw or Weight()
        return random.choices(levels, [weight.of(level) for level in levels], k=count)  # noqa: S311


_STRATEGIES: dict[str, Strategy] = {}


def register(strategy: Strategy) -> Strategy:
    """Make a strategy known by its name, in every process that claims by it; returns it."""
    known = _STRATEGIES.setdefault(strategy.name.upper(), strategy)
    if known != strategy:
        raise ConfigurationError(f"there is another strategy of the name {known.name}")
    return strategy


def get_strategy(name: str) -> Strategy:
    """Return the strategy of that name, in any case; an unknown one raises `ValueError` naming all."""
    try:
        return _STRATEGIES[name.upper()]
    except (KeyError, AttributeError):
        raise ConfigurationError(f"unknown strategy {name!r}; valid ones are: {', '.join(names())}") from None


def names() -> tuple[str, ...]:
    """The names of all strategies that are registered."""
    return tuple(one.name for one in _STRATEGIES.values())


# Oldest first, whatever the priority: nothing starves, nothing jumps the line.
register(Strategy("FIFO", (OLDEST,)))
# For interactive work, where the latest request is the one somebody waits for.
register(Strategy("LIFO", (NEWEST,)))
# Low levels wait while high ones have work.
register(Strategy("PRIORITY", (HIGHEST, OLDEST)))
# No level starves.
register(Strategy("WEIGHTED_RANDOM", (OLDEST,), draw=Weight(plus=1, least=1)))
