"""The fused exchange: completed runs go back and new claims come, in one statement and one round trip.

Only for what is usual; the statement itself says when it is not, and then has claimed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rowlock.job import Claim, Outcome, Want
from rowlock.stores.claiming import claim_of
from rowlock.stores.postgres.dialect import DRAWN, exchange

_STRATEGIES = ("PRIORITY", "FIFO", "LIFO")


class Answer(msgspec.Struct, frozen=True):
    """What the statement said."""

    alive: bool
    special: bool
    lost: list[Outcome]
    claims: list[Claim]

    def leaves_places(self, want: Want) -> bool:
        """True if several queues were asked for their share, and one that has more could fill up the rest."""
        return 1 < len(self.claims) < want.count and len({claim.queue for claim in self.claims}) > 1


def is_usual(outcomes: Sequence[Outcome]) -> bool:
    """True if all are first-try completions: they leave no history."""
    return all(outcome.is_usual for outcome in outcomes)


def fits(want: Want) -> bool:
    """True if one statement can claim: in an order that one index gives, or by one draw."""
    return want.strategy in _STRATEGIES or is_drawn(want)


def is_drawn(want: Want) -> bool:
    """True if one level is drawn, for one job of one queue."""
    return want.strategy == DRAWN and want.count == 1 and len(want.queues) < 2


def question(
    schema: str | None, worker: str, outcomes: Sequence[Outcome], want: Want, asleep: bool
) -> tuple[str, dict[str, Any]]:
    """The statement, and its values."""
    names = _in_turn(want)
    many = want.count > 1 or len(names) > 1
    number, done = finished(outcomes)
    statement = exchange(
        schema, strategy=want.strategy, many=many, named=bool(names), done=number, asleep=asleep
    )
    values = {
        "worker": worker,
        "count": want.count,
        "alone": int(want.alone),
        "after": want.after,
        "queue": names[0] if names else None,
        "names": names,
        "quick": list(want.quick),
        **done,
    }
    return statement, values


def finished(outcomes: Sequence[Outcome]) -> tuple[str, dict[str, Any]]:
    """Which way to write the completed ones ("one" or "many"), and the values for it."""
    if len(outcomes) > 1:
        outcomes = sorted(outcomes, key=lambda outcome: outcome.id)
        return "many", {
            "done_ids": _array(str(outcome.id) for outcome in outcomes),
            "done_claims": _array(str(outcome.claim) for outcome in outcomes),
            "done_results": _array(_quoted(outcome.result) for outcome in outcomes),
        }
    if not outcomes:
        return "one", {"id": None, "claim": None, "result": None}
    return "one", {"id": outcomes[0].id, "claim": outcomes[0].claim, "result": outcomes[0].result}


# An array as the text that the server reads: the driver's own lists take 7 us per element.


def _array(elements: Iterable[str]) -> str:
    return "{" + ",".join(elements) + "}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def answer(rows: list[Any], outcomes: Sequence[Outcome], want: Want) -> Answer:
    """Read the statement's rows: facts and finished ids in each, a claim in those that have one."""
    alive, special, written = rows[0][:3]
    done: set[int] = set(written or ())
    claims = [row[3:] for row in rows if row[3] is not None]
    if len(claims) > 1:
        claims.sort(key=_ORDERS[want.strategy])
        names = _in_turn(want)
        claims.sort(key=lambda row: names.index(row[3]) if names else (row[3] <= want.after, row[3]))
    return Answer(
        alive,
        special,
        [outcome for outcome in outcomes if outcome.id not in done],
        [claim_of(row) for row in claims],
    )


def _in_turn(want: Want) -> list[str]:
    """The named queues, beginning after the one served last."""
    start = want.queues.index(want.after) + 1 if want.after in want.queues else 0
    return list(want.queues[start:] + want.queues[:start])


# By position within a claim's row: its priority is the sixth column, its position the last.
_ORDERS: dict[str, Any] = {
    "PRIORITY": lambda row: (-row[5], row[-1]),
    "FIFO": lambda row: row[-1],
    "LIFO": lambda row: -row[-1],
}
