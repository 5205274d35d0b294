"""Jobs of 1 ms of computing in Python: two child processes beside one."""

from __future__ import annotations

import importlib
import sys
import textwrap
import time

from benchmarks.measure import Timing, in_turn
from benchmarks.report import Line, Setting, compared

_AT_LEAST = 1.8
_SOURCE = """
    import time
    from rowlock import Rowlock

    app = Rowlock("sqlite:///{file}")

    @app.task(pool="process")
    def compute(n: int) -> int:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            n += 1
        return n
"""


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    source = textwrap.dedent(_SOURCE).format(file=setting.folder / "processes.db")
    (setting.folder / "processes_app.py").write_text(source)
    sys.path.insert(0, str(setting.folder))  # children inherit it
    app = importlib.import_module("processes_app").app
    count = setting.choose(4_000, 1_000)

    def drained(children: int) -> Timing:
        app.tasks["compute"].enqueue_many([(n,) for n in range(count)])
        cpu = time.process_time()
        with app.worker(concurrency=children).background() as worker:
            while not worker.tally.completed:  # children take their time to start
                time.sleep(0.001)
            start, before = time.perf_counter(), worker.tally.completed
            while worker.tally.completed < count:
                time.sleep(0.01)  # each look costs the worker some time
            seconds = (time.perf_counter() - start) * count / (count - before)
        return Timing(seconds, time.process_time() - cpu)

    comparison = in_turn(lambda: drained(2), lambda: drained(1), pairs=setting.choose(5, 2))
    app.close()
    sys.path.remove(str(setting.folder))
    return [compared("processes", "two children, one = 1", comparison, count, _AT_LEAST)]
