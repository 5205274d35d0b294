"""Single claims from a large backlog: every strategy, all queues and a named one, one queue and twenty.

Each claim commits durably, so a bare durable commit of one row, timed beside it, is the floor on this disk.
The same claims with `synchronous` off show the work alone. Blocks in which a bare commit alone missed the
target are left out and counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.apps import app_at
from benchmarks.backlog import Backlog
from benchmarks.byhand import connect
from benchmarks.measure import percentile
from benchmarks.report import Line, Setting
from rowlock.job import Want
from rowlock.stores.base import Registration, Store
from rowlock.stores.sqlite import SqliteStore
from rowlock.strategies import NAMES

_LESS_THAN = 0.001
_BLOCK = 20  # claims of one kind in a row, as a worker makes them
_FEW_LEVELS = (-10, 0, 1, 5, 10, 50, 100)
_ALL_LEVELS = tuple(range(-100, 101))
_WORKER = "bench"


@dataclass(frozen=True)
class Block:
    """Some claims in a row, each with a bare commit right after it, and as many that wait for no disk."""

    claims: list[float]
    floors: list[float]
    work: list[float]

    @property
    def calm(self) -> bool:
        """False if even a bare commit missed the target: that tells of the machine, not of claims."""
        return max(self.floors) < _LESS_THAN


@dataclass
class Kind:
    """One way of claiming, and what was measured of it."""

    name: str
    strategy: str
    queues: tuple[str, ...]
    after: str = ""
    blocks: list[Block] = field(default_factory=list)

    def claim(self, store: Store) -> float:
        """Claim one job; returns the seconds it took."""
        want = Want(count=1, strategy=self.strategy, queues=self.queues, after=self.after)
        start = time.perf_counter()
        got = store.exchange(_WORKER, want=want)
        seconds = time.perf_counter() - start
        assert len(got.claims) == 1
        self.after = got.last_queue
        return seconds

    def measure(self, store: SqliteStore, floor: Floor) -> None:
        """Measure one more block."""
        pairs = [(self.claim(store), floor.commit()) for _ in range(_BLOCK)]
        with _not_waiting_for_the_disk(store):
            work = [self.claim(store) for _ in range(_BLOCK)]
        self.blocks.append(Block([claim for claim, _ in pairs], [bare for _, bare in pairs], work))


class Floor:
    """A bare durable commit of one row, in a file of its own: another writer would empty our page cache."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._connection.execute("CREATE TABLE floor (at REAL)")

    def commit(self) -> float:
        start = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO floor VALUES (1.0)")
        self._connection.execute("COMMIT")
        return time.perf_counter() - start

    def close(self) -> None:
        self._connection.close()


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    one = _measure(setting, "1 queue", 1, _FEW_LEVELS, NAMES)
    twenty = _measure(setting, "20 queues", 20, _FEW_LEVELS, NAMES)
    deep = _measure(setting, "201 levels", 1, _ALL_LEVELS, [name for name in NAMES if name != "PRIORITY"])
    rows = setting.choose(1_000_000, 100_000)
    return [
        *(_line(kind, _LESS_THAN) for kind in one + twenty),
        *(_line(kind, None) for kind in deep),
        _floor(one + twenty + deep),
        Line("claims", "backlog", f"{rows:,} queued", detail=f"{rows:,} completed, {rows // 10:,} scheduled"),
    ]


def _measure(
    setting: Setting, title: str, queues: int, levels: Sequence[int], strategies: Sequence[str]
) -> list[Kind]:
    rows = setting.choose(1_000_000, 100_000)
    path = setting.folder / f"{title.replace(' ', '-')}.db"
    Backlog(rows, rows, rows // 10, queues, levels).build(path, time.time())
    store = app_at(path).store
    assert isinstance(store, SqliteStore)
    store.register(_registration())
    floor = Floor(path.with_suffix(".floor.db"))
    named = f"q{queues // 2:02}"
    kinds = [Kind(f"{title}, {strategy}, all", strategy, ()) for strategy in strategies]
    kinds += [Kind(f"{title}, {strategy}, named", strategy, (named,)) for strategy in strategies]
    for number in range(setting.choose(25, 6) + 1):
        for kind in kinds:
            kind.measure(store, floor)
            if number == 0:  # it has warmed up
                kind.blocks.clear()
    floor.close()
    store.close()
    for file in setting.folder.glob(f"{path.stem}*"):
        file.unlink()
    return kinds


@contextmanager
def _not_waiting_for_the_disk(store: SqliteStore) -> Iterator[None]:
    with store.connections.borrowed() as connection:
        pass
    connection.execute("PRAGMA synchronous = OFF")
    yield
    connection.execute("PRAGMA synchronous = FULL")


def _registration() -> Registration:
    return Registration(
        id=_WORKER,
        host="bench",
        pid=1,
        version="0",
        queues=(),
        tasks={},
        strategy="PRIORITY",
        concurrency=1,
        lease=86_400,
    )


def _line(kind: Kind, less_than: float | None) -> Line:
    calm = [block for block in kind.blocks if block.calm]
    # The verdict is over every claim. What the calm blocks gave is told beside it, not instead of it.
    p50, p95, p99 = _percentiles([one for block in kind.blocks for one in block.claims])
    calm95 = percentile([one for block in calm or kind.blocks for one in block.claims], 95)
    floor50, floor95, _ = _percentiles([one for block in kind.blocks for one in block.floors])
    work50, work95, _ = _percentiles([one for block in kind.blocks for one in block.work])
    return Line(
        "claims",
        kind.name,
        f"p95 {_ms(p95)}",
        "" if less_than is None else f"< {_ms(less_than)}",
        p95 < less_than if less_than is not None else None,
        f"{len(calm)} of {len(kind.blocks)} blocks calm, p95 {_ms(calm95)} there; "
        f"p50 {_ms(p50)}, p99 {_ms(p99)}; less the floor p50 {_ms(p50 - floor50)}, p95 {_ms(p95 - floor95)}; "
        f"work alone p50 {_ms(work50)}, p95 {_ms(work95)}",
        {
            "p50_seconds": p50,
            "p95_seconds": p95,
            "p99_seconds": p99,
            "floor_p50_seconds": floor50,
            "floor_p95_seconds": floor95,
            "work_p50_seconds": work50,
            "work_p95_seconds": work95,
            "blocks": len(kind.blocks),
            "calm_blocks": len(calm),
            "calm_p95_seconds": calm95,
        },
    )


def _floor(kinds: Sequence[Kind]) -> Line:
    p50, p95, p99 = _percentiles([one for kind in kinds for block in kind.blocks for one in block.floors])
    return Line(
        "claims",
        "floor: a bare durable commit",
        f"p95 {_ms(p95)}",
        detail=f"p50 {_ms(p50)}, p99 {_ms(p99)}; all blocks",
        figures={"p50_seconds": p50, "p95_seconds": p95, "p99_seconds": p99},
    )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    return percentile(seconds, 50), percentile(seconds, 95), percentile(seconds, 99)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
