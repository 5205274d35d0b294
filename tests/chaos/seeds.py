"""The seed of a run: printed with every failure, and given back with ROWLOCK_CHAOS_SEED."""

from __future__ import annotations

import os
import random

# Read when this is imported: the tests themselves see no ROWLOCK_ variable from outside.
_GIVEN = os.environ.get("ROWLOCK_CHAOS_SEED")


def seed() -> int:
    """The given seed or a new one; says which, and pytest shows it when the test fails."""
    chosen = int(_GIVEN) if _GIVEN else random.randrange(2**32)
    print(f"the seed is {chosen}; ROWLOCK_CHAOS_SEED={chosen} runs it again")  # noqa: T201
    return chosen
