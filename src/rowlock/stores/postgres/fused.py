"""The fused exchange: completed runs go back and new claims come, in one statement and one round trip.

Only for what is usual; the statement itself says when it is not, and then has claimed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import GenericAlias
from typing import TYPE_CHECKING, get_type_hints

import msgspec
from msgspec.structs import replace

from rowlock.errors import OutcomeUnknown, StoreUnreachable
from rowlock.job import Claim, ClaimRequest, Exchange, ExchangeResult, Outcome
from rowlock.stores.postgres.dialect import exchange, exchange_start
from rowlock.stores.postgres.faults import is_lost
from rowlock.stores.postgres.prepared import Row, Value
from rowlock.stores.source import OneStatement
from rowlock.stores.sql.claiming import CLAIM_COLUMNS, claim_of, left_out, listed
from rowlock.stores.sql.finishing import without_expired
from rowlock.stores.sql.queues_in_turn import named_in_turn
from rowlock.strategies import get_strategy

if TYPE_CHECKING:
    from rowlock.stores.postgres.database import PostgresDatabase

_TRUE = b"t"
_NULL = msgspec.Raw(b"null")


# A claim as the statement writes it, by CLAIM_COLUMNS; arguments and headers stay the JSON that they are.
# Headers are not `Raw | None`: msgspec then takes null and nothing else.
_types = get_type_hints(Claim) | {"args_json": msgspec.Raw, "meta_json": msgspec.Raw}
_row = GenericAlias(tuple, tuple(_types[name] for name in Claim.__struct_fields__[: len(CLAIM_COLUMNS)]))
_claim = msgspec.json.Decoder(_row)


class Answer(msgspec.Struct, frozen=True):
    """What the statement said."""

    has_paused: bool  # a queue is paused
    needs_transaction: bool  # a plain transaction has to do it
    lost: list[Outcome]
    claims: list[Claim]

    def leaves_places(self, request: ClaimRequest) -> bool:
        """True if a queue or a level had less than its share, and others may have more than theirs."""
        shared = get_strategy(request.strategy).draw or len({claim.queue for claim in self.claims}) > 1
        return bool(shared) and 0 < len(self.claims) < request.count


class FusedExchange:
    """The whole exchange in one statement, where all is as usual."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._has_paused = False  # a queue was paused at the last look

    def ask(self, asked: Exchange) -> OneStatement | None:
        """Outcomes out, claims in, and what is left to be claimed; None if it takes a transaction."""
        request = asked.request
        nothing_to_claim = request is None and asked.start is None
        if nothing_to_claim or asked.needs_transaction or asked.reports or asked.minutes or asked.resent:
            return None
        # First-try completions leave no history.
        if self._database.address.pooled or not all(outcome.is_usual for outcome in asked.outcomes):
            return None
        many = request is not None and (self._has_paused or not is_for_one(request))
        statement, values = self._question(asked, many)
        try:
            with self._database.read(asked.now) as db:
                said = answer(db.ask(statement, values), asked.outcomes, request)
        except StoreUnreachable as error:
            if not is_lost(error.__cause__):
                raise
            raise OutcomeUnknown(f"{error}; what was written is looked up") from error
        if said.claims:
            # The statement has cleared the flag in its row that says it sleeps.
            self._database.sleepers.get_up(asked.worker, is_told=True)
        got = ExchangeResult(self._in_time(asked, said.claims), said.lost)
        return got, self._rest(asked, many, said)

    def _rest(self, asked: Exchange, many: bool, said: Answer) -> Exchange | None:
        """What the statement has left."""
        if said.needs_transaction:
            return replace(asked.claims_only(), needs_transaction=True)
        request = asked.request
        if request is None:
            return None
        self._has_paused = said.has_paused
        if said.has_paused and not many:  # only the form for many looks at each queue
            return asked.claims_only()
        if said.leaves_places(request):
            rest = replace(request, count=request.count - len(said.claims), may_isolate=False)
            return replace(asked.claims_only(), request=rest)
        return None

    def _question(self, asked: Exchange, many: bool) -> tuple[str, dict[str, Value]]:
        """The statement, and its values; in the form for `many` jobs or for one."""
        schema, request = self._database.address.schema, asked.request
        values: dict[str, Value] = {"worker": asked.worker}
        if asked.start is not None:
            job, claim = asked.start
            return exchange_start(schema), {
                "id": job,
                "claim": claim,
                "queues": listed(asked.start_queues),
                **values,
                **done_many(asked.outcomes),
            }
        assert request is not None
        names = named_in_turn(request)
        asleep = asked.worker in self._database.sleepers
        strategy = get_strategy(request.strategy)
        done = "many" if len(asked.outcomes) > 1 else "one"
        values |= done_many(asked.outcomes) if done == "many" else done_one(*asked.outcomes)
        return exchange(schema, strategy, many=many, named=bool(names), done=done, asleep=asleep), {
            "begins": int(not asked.hand_over),
            "count": request.count,
            "isolate": int(request.may_isolate),
            "after": request.after,
            "queue": names[0] if names else None,
            "queues": listed(names),
            "unknown": left_out(request),
            "marks": None,
            **values,
        }

    def _in_time(self, asked: Exchange, claims: list[Claim]) -> list[Claim]:
        """Without those whose deadline to start has passed; most often there are none."""
        if all(claim.deadline is None or claim.deadline > claim.taken for claim in claims):
            return claims
        with self._database.write(asked.now) as tx:
            return without_expired(tx, asked.worker, claims)


def is_for_one(request: ClaimRequest) -> bool:
    """True if one job of one queue is asked for, by an order: there is a shorter form for that."""
    drawn = get_strategy(request.strategy).draw is not None
    return request.count == 1 and len(request.queues) < 2 and not drawn


def done_one(outcome: Outcome | None = None) -> dict[str, Value]:
    """The values that write one completed run, or none."""
    if outcome is None:
        return {"id": None, "claim": None, "result": None}
    return {"id": outcome.id, "claim": outcome.claim, "result": outcome.result}


def done_many(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """The values that write any number of completed runs."""
    outcomes = sorted(outcomes, key=attrgetter("id"))
    return {
        "done_ids": _array(str(outcome.id) for outcome in outcomes),
        "done_claims": _array(str(outcome.claim) for outcome in outcomes),
        "done_results": _array(_quoted(outcome.result) for outcome in outcomes),
    }


def _array(elements: Iterable[str]) -> str:
    """An array as the text that the server reads: the driver's own lists take 7 us per element."""
    return "{" + ",".join(elements) + "}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def answer(rows: list[Row], outcomes: Sequence[Outcome], request: ClaimRequest | None) -> Answer:
    """Read the statement's rows: one with the facts and the finished ids, and one for each claim."""
    ((has_paused, needs_transaction, ids),) = [row for row in rows if row[0] is not None]
    done = set(map(int, filter(None, (ids or b"")[1:-1].split(b","))))  # an array, as in {1,2}
    claims = [_claim_of(row[2] or b"") for row in rows if row[0] is None]
    # Of all that was drawn, others may hold all: a plain transaction passes the draws on to other levels.
    in_vain = request is not None and not claims and get_strategy(request.strategy).draw is not None
    if request is not None and len(claims) > 1:
        claims = get_strategy(request.strategy).arranged(claims)
        names = named_in_turn(request)
        claims.sort(
            key=lambda one: names.index(one.queue) if names else (one.queue <= request.after, one.queue)
        )
    return Answer(
        has_paused == _TRUE,
        needs_transaction == _TRUE or in_vain,
        [outcome for outcome in outcomes if outcome.id not in done],
        claims,
    )


def _claim_of(text: bytes) -> Claim:
    row = list(_claim.decode(text))
    row[4] = bytes(row[4]).decode()
    row[14] = None if row[14] == _NULL else bytes(row[14]).decode()
    return claim_of(row)
