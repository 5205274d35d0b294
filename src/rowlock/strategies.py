"""The orders in which queued jobs are claimed; a new strategy is one small class here.

Knows nothing of SQL: a store offers each queue as a `Shelf`, and a strategy says what to take from it.
Every way of taking is O(log n) in the backlog: it reads the index `ready (queue, priority DESC, position)`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from rowlock.errors import ConfigurationError
from rowlock.job import Claim


class Shelf(Protocol):
    """The queued jobs of one queue, inside an open claim."""

    def highest(self, count: int) -> list[Claim]:
        """Take the jobs of highest priority, oldest first within a level."""
        ...

    def oldest(self, count: int) -> list[Claim]:
        """Take the jobs of lowest position."""
        ...

    def newest(self, count: int) -> list[Claim]:
        """Take the jobs of highest position."""
        ...

    def levels(self) -> list[int]:
        """The priorities that have queued jobs, highest first; at most 201 of them."""
        ...

    def oldest_at(self, level: int, count: int) -> list[Claim]:
        """Take the oldest jobs of one priority level."""
        ...


class Strategy(Protocol):
    """An order of claiming."""

    name: str

    def take(self, shelf: Shelf, count: int) -> list[Claim]:
        """Take up to `count` jobs from the shelf; fewer means that it is empty."""
        ...


class Fifo:
    """Oldest first, whatever the priority: nothing starves, nothing jumps the line."""

    name = "FIFO"

    def take(self, shelf: Shelf, count: int) -> list[Claim]:
        return shelf.oldest(count)


class Lifo:
    """Newest first: for interactive work, where the latest request is the one somebody waits for."""

    name = "LIFO"

    def take(self, shelf: Shelf, count: int) -> list[Claim]:
        return shelf.newest(count)


class Priority:
    """Highest priority first, oldest first within a level; low levels wait while high ones have work."""

    name = "PRIORITY"

    def take(self, shelf: Shelf, count: int) -> list[Claim]:
        return shelf.highest(count)


class WeightedRandom:
    """Each non-empty level wins in proportion to its weight, oldest first within: no level starves.

    Levels are drawn, not rows: `ORDER BY priority * random()` reads the whole backlog (320 ms at a
    million rows) and gives the top level 99.85 % of the picks.
    """

    name = "WEIGHTED_RANDOM"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = rng or random.Random()  # noqa: S311 - a lottery, not a secret

    @staticmethod
    def weight(level: int) -> int:
        """The weight of a priority level."""
        return max(1, 1 + level)

    def take(self, shelf: Shelf, count: int) -> list[Claim]:
        taken: list[Claim] = []
        hands: dict[int, Iterator[Claim]] = {}
        levels = shelf.levels()
        while levels and len(taken) < count:
            draws = self._random.choices(levels, [self.weight(one) for one in levels], k=count - len(taken))
            for level, wanted in Counter(draws).items():
                won = shelf.oldest_at(level, wanted)
                if len(won) < wanted:  # this level ran out: the draws it could not serve are drawn again
                    levels.remove(level)
                hands[level] = iter(won)
            taken += [claim for level in draws if (claim := next(hands[level], None))]
        return taken


_STRATEGIES: dict[str, Strategy] = {one.name: one for one in (Fifo(), Lifo(), Priority(), WeightedRandom())}
NAMES = tuple(_STRATEGIES)


def get_strategy(name: str) -> Strategy:
    """Return the strategy of that name; an unknown one raises `ValueError` naming the valid ones."""
    try:
        return _STRATEGIES[name]
    except (KeyError, TypeError):
        raise ConfigurationError(f"unknown strategy {name!r}; valid ones are: {', '.join(NAMES)}") from None
