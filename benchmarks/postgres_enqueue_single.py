"""One durable enqueue after another in PostgreSQL, beside single INSERT statements written by hand."""

from __future__ import annotations

from benchmarks.apps import adding_app
from benchmarks.byhand_postgres import HandWrittenQueue
from benchmarks.measure import Timing, in_turn, timed
from benchmarks.report import Line, Setting, compared
from benchmarks.server import a_server

_BLOCK = 50  # jobs per timing: short enough that both sides meet the same disk
_AT_LEAST = 0.85


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    with a_server() as url:
        app, add = adding_app(url)
        byhand = HandWrittenQueue(url)

        def ours() -> Timing:
            return timed(lambda: [add.enqueue(number, b=2) for number in range(_BLOCK)])

        def baseline() -> Timing:
            return timed(lambda: [byhand.enqueue("add", {"a": number, "b": 2}) for number in range(_BLOCK)])

        comparison = in_turn(ours, baseline, pairs=setting.choose(80, 20))
        app.close()
        byhand.close()
    return [compared("postgres_enqueue_single", "speed, by hand = 1", comparison, _BLOCK, _AT_LEAST)]
