"""Other queues on SQLite doing the same work: one adapter per peer, used if its package is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec

from benchmarks.apps import adding_app, calls
from benchmarks.measure import Comparison, Timing, in_turn, timed
from benchmarks.peers.base import Peer
from benchmarks.report import Line, Setting, compared

# package to install -> module to import, our adapter of it
_PEERS = {
    "huey": ("huey", "benchmarks.peers.huey_sqlite"),
    "litequeue": ("litequeue", "benchmarks.peers.lite_queue"),
}
_BLOCK = 50


def run(setting: Setting) -> list[Line]:
    """Measure every peer that is installed; the others get a line that says how to add them."""
    lines: list[Line] = []
    for package, (module, adapter) in _PEERS.items():
        if find_spec(module) is None:
            lines.append(Line("peers", package, "not installed", detail=f"pip install {package}"))
            continue
        folder = setting.folder / package
        folder.mkdir()
        peer: Peer = importlib.import_module(adapter).open_peer(folder / "peer.db")
        lines += _against(peer, package, Setting(folder, setting.quick))
        peer.close()
    return lines


def _against(peer: Peer, name: str, setting: Setting) -> list[Line]:
    app, add = adding_app(setting.folder / "rowlock.db")

    enqueued = in_turn(
        lambda: timed(lambda: _enqueue(lambda a, b: add.enqueue(a, b=b), _BLOCK)),
        lambda: timed(lambda: _enqueue(peer.enqueue, _BLOCK)),
        pairs=setting.choose(40, 10),
    )
    app.worker(concurrency=1).run(until_empty=True)
    peer.drain()

    count = setting.choose(1_000, 250)

    def drain_ours() -> Timing:
        add.enqueue_many(calls(count))
        return timed(lambda: app.worker(concurrency=1).run(until_empty=True))

    def drain_theirs() -> Timing:
        _enqueue(peer.enqueue, count)
        done: list[int] = []
        timing = timed(lambda: done.append(peer.drain()))
        assert done == [count]
        return timing

    drained = in_turn(drain_ours, drain_theirs, pairs=setting.choose(4, 2))
    app.close()
    return [
        _line(f"{name}: enqueue", enqueued, _BLOCK, peer.durability),
        _line(f"{name}: drain one by one", drained, count, peer.difference),
    ]


def _enqueue(enqueue: Callable[[int, int], object], count: int) -> None:
    for number in range(count):
        enqueue(number, 2)


def _line(what: str, comparison: Comparison, jobs: int, remark: str) -> Line:
    line = compared("peers", f"{what}, {what.split(':')[0]} = 1", comparison, jobs, None)
    return Line(
        line.scenario, line.what, line.measured, detail=f"{line.detail} ({remark})", figures=line.figures
    )
