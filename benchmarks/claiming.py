"""Times single claims beside bare durable commits, and reports them: shared by the databases' `claims`.

Blocks in which a bare commit alone missed the target are counted, and reported beside the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.measure import percentile
from benchmarks.report import Line
from rowlock.job import ClaimRequest
from rowlock.stores.base import Registration
from rowlock.stores.sql.store import Store

FEW_LEVELS = (-10, 0, 1, 5, 10, 50, 100)
ALL_LEVELS = tuple(range(-100, 101))
_BLOCK = 20  # claims of one kind in a row, as a worker makes them
_WORKER = "bench"


@dataclass(frozen=True)
class Ground:
    """The store that is claimed from, a bare commit beside it, and how its disk is left out."""

    store: Store
    bare_commit: Callable[[], object]
    not_waiting_for_the_disk: Callable[[], AbstractContextManager[None]]

    def measure(self, kinds: Sequence[Kind], blocks: int) -> None:
        """Measure so many blocks of each kind, in turn; one more warms up."""
        self.store.register(registration(_WORKER))
        for number in range(blocks + 1):
            for kind in kinds:
                block = self._block(kind)
                if number > 0:
                    kind.blocks.append(block)

    def _block(self, kind: Kind) -> Block:
        pairs = [(kind.claim(self.store), self._pool_plan()) for _ in range(_BLOCK)]
        with self.not_waiting_for_the_disk():
            work = [kind.claim(self.store) for _ in range(_BLOCK)]
        return Block([claim for claim, _ in pairs], [bare for _, bare in pairs], work)

    def _pool_plan(self) -> float:
        start = time.perf_counter()
        self.bare_commit()
        return time.perf_counter() - start


@dataclass(frozen=True)
class Block:
    """Some claims in a row, each with a bare commit right after it, and as many that wait for no disk."""

    claims: list[float]
    floors: list[float]
    work: list[float]

    def is_calm(self, target: float) -> bool:
        """False if even a bare commit missed the target: that tells of the machine, not of claims."""
        return max(self.floors) < target


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
        request = ClaimRequest(count=1, strategy=self.strategy, queues=self.queues, after=self.after)
        start = time.perf_counter()
        got = store.exchange(_WORKER, request=request)
        seconds = time.perf_counter() - start
        assert len(got.claims) == 1
        self.after = got.last_queue
        return seconds


def kinds_of(title: str, queues: int, strategies: Sequence[str]) -> list[Kind]:
    """Every strategy from all queues, and from a named one."""
    named = f"q{queues // 2:02}"
    kinds = [Kind(f"{title}, {strategy}, all", strategy, ()) for strategy in strategies]
    return kinds + [Kind(f"{title}, {strategy}, named", strategy, (named,)) for strategy in strategies]


def line(scenario: str, kind: Kind, target: float, judged: bool) -> Line:
    """The line of one kind; without being judged, the target only says which blocks were calm."""
    calm = [block for block in kind.blocks if block.is_calm(target)]
    # The verdict is over every claim. What the calm blocks gave is told beside it, not instead of it.
    p50, p95, p99 = _percentiles([one for block in kind.blocks for one in block.claims])
    calm95 = percentile([one for block in calm or kind.blocks for one in block.claims], 95)
    floor50, floor95, _ = _percentiles([one for block in kind.blocks for one in block.floors])
    work50, work95, _ = _percentiles([one for block in kind.blocks for one in block.work])
    return Line(
        scenario,
        kind.name,
        f"p95 {_ms(p95)}",
        f"< {_ms(target)}" if judged else "",
        p95 < target if judged else None,
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


def floor_line(scenario: str, kinds: Sequence[Kind]) -> Line:
    """The line of the bare commits."""
    p50, p95, p99 = _percentiles([one for kind in kinds for block in kind.blocks for one in block.floors])
    return Line(
        scenario,
        "floor: a bare durable commit",
        f"p95 {_ms(p95)}",
        detail=f"p50 {_ms(p50)}, p99 {_ms(p99)}; all blocks",
        figures={"p50_seconds": p50, "p95_seconds": p95, "p99_seconds": p99},
    )


def backlog_line(scenario: str, rows: int, remark: str = "") -> Line:
    """The line that says what was claimed from."""
    detail = f"{rows:,} completed, {rows // 10:,} scheduled{remark}"
    return Line(scenario, "backlog", f"{rows:,} queued", detail=detail)


def registration(worker: str) -> Registration:
    """A worker that never falls silent, for calling the store without one."""
    return Registration(
        id=worker,
        host="bench",
        pid=1,
        version="0",
        queues=(),
        tasks={},
        strategy="PRIORITY",
        concurrency=1,
        lease=86_400,
    )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    return percentile(seconds, 50), percentile(seconds, 95), percentile(seconds, 99)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
