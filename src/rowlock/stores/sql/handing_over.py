"""Claims on their way through a relay: handed over by one worker, begun by another.

Each step is inside the caller's transaction. Taking back what nobody has begun is an outcome like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.claim_outcomes import ended
from rowlock.codec import json_text
from rowlock.endings import Event
from rowlock.errors import WorkerGone
from rowlock.job import Claim, ClaimRequest, Outcome
from rowlock.retry import DEFAULT
from rowlock.stores.sql.claiming import CLAIM_COLUMNS, claim_of
from rowlock.stores.sql.finishing import finish
from rowlock.stores.sql.session import Session


def hand_over(tx: Session, worker: str, claims: Sequence[Claim]) -> None:
    """Say of claims that were taken in this transaction that they have not begun."""
    if claims:
        ids = json_text([claim.id for claim in claims])
        tx.run("hand_over", ids=ids, worker=worker)


def start(tx: Session, worker: str, request: ClaimRequest) -> list[Claim]:
    """Move claims to the worker that begins them; returns those that it may run.

    Not among them: claims that were taken back or begun by another, those of other queues than it works on,
    and those that end here because their cancel was asked for or their queue is paused.
    """
    alive, has_paused = tx.row("start_facts", worker=worker)
    if not alive:
        raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
    paused = {name for name, since, _ in tx.rows("queue_settings") if since} if has_paused else set()
    begun: list[Claim] = []
    over: list[Outcome] = []
    named = {"all": int(not request.queues), "queues": json_text(request.queues)}
    for job, claim in request.starts:
        for row in tx.rows("start_claim", id=job, claim=claim, worker=worker, **named):
            taken = claim_of(row[: len(CLAIM_COLUMNS)])
            asked = bool(row[len(CLAIM_COLUMNS)])
            if asked or taken.queue in paused:
                over.append(ended(taken, Event.RELEASED, DEFAULT, began=False, cancel_requested=asked))
            else:
                begun.append(taken)
    finish(tx, worker, over)
    return begun
