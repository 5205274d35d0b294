"""What is refused before a copy has written anything."""

from __future__ import annotations

import msgspec

from rowlock.copying.progress import CopyState
from rowlock.errors import StoreError, StoreMissing, StoreMoved, StoreUnusable
from rowlock.monitoring import WorkerRecord
from rowlock.options import CONSUMERS
from rowlock.stores.sql.copying import MOVED, MOVED_TO, CopySide, key_of, moved_facts
from rowlock.stores.sql.schema_versions import version_of
from rowlock.stores.sql.store import Store


class CopyRefused(StoreError):
    """A copy that was not begun: nothing was written."""


def side_of(store: Store) -> CopySide:
    """What a copy needs of this store."""
    return store.database.copying(store)


def facts_of(side: CopySide) -> dict[str, str]:
    """What the queue's own table says about it."""
    with side.reading() as db:
        return dict(db.rows("meta"))


def living_workers(side: CopySide) -> list[WorkerRecord]:
    """The workers that take jobs; those of consumers do not."""
    return [
        one
        for one in side.store.workers()
        if one.alive and not any(queue.startswith(CONSUMERS) for queue in one.queues)
    ]


def check(
    source: CopySide, target: CopySide, *, merge: bool, keep: bool, with_workers_alive: bool
) -> CopyState | None:
    """Raise if this copy may not be made; returns an interrupted one that is to be gone on with."""
    source.store.open(create=False)
    facts = facts_of(source)
    if version_of(facts, source.address) > source.version:
        raise CopyRefused(
            f"{source.address} has schema {facts['version']}, and this rowlock knows no newer one than "
            f"{source.version}: install a newer rowlock"
        )
    try:
        target.store.open(create=False)
    except StoreMissing:
        there: dict[str, str] = {}
    else:
        there = facts_of(target)
    if facts["install_id"] == there.get("install_id"):
        raise CopyRefused(
            f"{source.address} and {target.address} are the same queue, or one is a backup of the other: "
            "a queue cannot be copied onto itself"
        )
    _check_moved(facts, there, target)
    state = None
    if written := there.get(key_of(facts["install_id"])):
        state = msgspec.json.decode(written, type=CopyState)
        if state.done and MOVED not in facts:
            raise CopyRefused(
                f"{target.address} has a copy of {source.address} already; "
                "a second one would run its jobs twice"
            )
    elif there and not merge and not _is_empty(target):
        raise CopyRefused(
            f"{target.address} is not empty: with --merge the jobs are added under new ids; "
            "else name an empty database"
        )
    if not with_workers_alive:
        refuse_living_workers(source)
    if not keep and MOVED not in facts:
        _check_rights(source)
    return state


def _check_rights(source: CopySide) -> None:
    try:
        source.check_rights()
    except StoreUnusable as error:
        raise CopyRefused(
            f"{source.address} cannot be closed by this user, which the end of a move needs: "
            f"copy as the owner of its tables, or with --keep ({error})"
        ) from error


def _check_moved(facts: dict[str, str], there: dict[str, str], target: CopySide) -> None:
    if MOVED in there:
        raise StoreMoved(f"nothing can be copied to it: {there[MOVED]}")
    if MOVED not in facts:
        return
    if not moved_facts(facts)["moving"] or facts.get(MOVED_TO) != there.get("install_id"):
        raise StoreMoved(facts[MOVED])


def refuse_living_workers(source: CopySide) -> None:
    """Raise while workers take jobs from the source."""
    if alive := living_workers(source):
        names = ", ".join(one.id for one in alive[:5]) + (" ..." if len(alive) > 5 else "")
        raise CopyRefused(
            f"workers are alive on {source.address} ({names}): stop them first, or copy with "
            "--with-workers-alive: what they run then is run again on the target"
        )


def _is_empty(side: CopySide) -> bool:
    with side.reading() as db:
        return db.row("lowest_id")[0] is None
