"""The fused exchange: completed runs go back and new claims come, in one statement and one round trip.

Only for what is usual; the statement itself says when it is not, and then has claimed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rowlock.job import Claim, ClaimRequest, Outcome
from rowlock.stores.postgres.dialect import exchange
from rowlock.stores.postgres.prepared import Row, Value
from rowlock.stores.sql.claiming import left_out
from rowlock.strategies import get_strategy

_TRUE = b"t"
_NULL = msgspec.Raw(b"null")


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """A claim as the statement writes it, by CLAIM_COLUMNS; arguments and headers stay what they are."""

    id: int
    claim: int
    task: str
    queue: str
    args: msgspec.Raw
    priority: int
    failures: int
    max_attempts: int | None
    created_at: float
    run_at: float
    claimed_at: float
    claimed_by: str
    expires_at: float | None
    unique_key: str | None
    meta: msgspec.Raw  # not `| None`: msgspec then takes null and nothing else
    isolate: int
    position: int

    def as_claim(self) -> Claim:
        return Claim(
            id=self.id,
            claim=self.claim,
            task=self.task,
            queue=self.queue,
            args_json=bytes(self.args).decode(),
            priority=self.priority,
            failures=self.failures,
            max_attempts=self.max_attempts,
            created=self.created_at,
            due=self.run_at,
            taken=self.claimed_at,
            claimed_by=self.claimed_by,
            deadline=self.expires_at,
            unique_key=self.unique_key,
            meta_json=None if self.meta == _NULL else bytes(self.meta).decode(),
            isolate=self.isolate,
            position=self.position,
            again=self.claim > 1,
        )


_claim = msgspec.json.Decoder(_Row)
_ids = msgspec.json.Decoder(list[int])


class Answer(msgspec.Struct, frozen=True):
    """What the statement said."""

    alive: bool
    configured: bool  # a queue is paused, or has a strategy of its own
    special: bool  # a plain transaction has to do it
    lost: list[Outcome]
    claims: list[Claim]

    def leaves_places(self, request: ClaimRequest) -> bool:
        """True if a queue or a level had less than its share, and others may have more than theirs."""
        shared = get_strategy(request.strategy).draw or len({claim.queue for claim in self.claims}) > 1
        return bool(shared) and 0 < len(self.claims) < request.count


def is_usual(outcomes: Sequence[Outcome]) -> bool:
    """True if all are first-try completions: they leave no history."""
    return all(outcome.is_usual for outcome in outcomes)


def question(
    schema: str | None,
    worker: str,
    outcomes: Sequence[Outcome],
    request: ClaimRequest,
    *,
    asleep: bool,
    many: bool,
) -> tuple[str, dict[str, Value]]:
    """The statement, and its values; in the form for `many` jobs or for one."""
    names = _in_turn(request)
    number, done = finished(outcomes)
    statement = exchange(
        schema,
        strategy=get_strategy(request.strategy),
        many=many,
        named=bool(names),
        done=number,
        asleep=asleep,
        leaves_out=bool(request.unknown),
    )
    values = {
        "worker": worker,
        "count": request.count,
        "isolate": int(request.isolate),
        "after": request.after,
        "queue": names[0] if names else None,
        "names": _array(map(_quoted, names)),
        "unknown": left_out(request),
        **done,
    }
    return statement, values


def is_for_one(request: ClaimRequest) -> bool:
    """True if one job of one queue is asked for, by an order: there is a shorter form for that."""
    drawn = get_strategy(request.strategy).draw is not None
    return request.count == 1 and len(request.queues) < 2 and not drawn


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


def answer(rows: list[Row], outcomes: Sequence[Outcome], request: ClaimRequest) -> Answer:
    """Read the statement's rows: one with the facts and the finished ids, and one for each claim."""
    (facts,) = [row for row in rows if row[0] is not None]
    done: set[int] = set(_ids.decode(facts[3]) if facts[3] else ())
    found = [_claim.decode(row[3] or b"") for row in rows if row[0] is None]
    if len(found) > 1:
        found = get_strategy(request.strategy).arranged(found)
        names = _in_turn(request)
        found.sort(
            key=lambda one: names.index(one.queue) if names else (one.queue <= request.after, one.queue)
        )
    return Answer(
        facts[0] == _TRUE,
        facts[1] == _TRUE,
        facts[2] == _TRUE,
        [outcome for outcome in outcomes if outcome.id not in done],
        [one.as_claim() for one in found],
    )


def _in_turn(request: ClaimRequest) -> list[str]:
    """The named queues, beginning after the one served last."""
    start = request.queues.index(request.after) + 1 if request.after in request.queues else 0
    return list(request.queues[start:] + request.queues[:start])
