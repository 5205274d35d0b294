"""The line of an error that is shown where there is room for one."""

from __future__ import annotations

import logging
import time
from contextlib import closing

import pytest

from rowlock import Fail, JobContext, JobFailed, Retry, Rowlock
from rowlock.error_text import describe, headline, storable


class Plain(Exception):
    """An error of this module, whose name comes with it."""


def described(error: BaseException, cause: BaseException | None = None) -> str:
    try:
        raise error from cause
    except BaseException as raised:
        return describe(raised)


NAME = f"{__name__}.Plain"
GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "f.py", line 3, in <module>
  |     raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    +---------------- 2 ----------------
    | KeyError: 'b'
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, ""),
        ("", ""),
        ("the card was declined", "the card was declined"),
        ("\n no sound \n in it\n", "no sound"),
        (described(Plain("no")), f"{NAME}: no"),
        (described(Plain("no such column\nLINE 1: SELECT x\n               ^")), f"{NAME}: no such column"),
        (described(Plain("hung up\n\tThis probably means\n\tnothing.")), f"{NAME}: hung up"),
        (described(Plain()), NAME),
        (described(Plain("second"), cause=Plain("first\nof two")), f"{NAME}: second"),
        (described(SyntaxError("bad", ("f.py", 1, 1, "a b\n"))), "SyntaxError: bad"),
        (storable(described(Plain("many\n" + "lines\n" * 20_000))), f"{NAME}: many"),
        (GROUP, "ExceptionGroup: two (2 sub-exceptions)"),
        ("Traceback (most recent call last):\n  File", "Traceback (most recent call last):"),
    ],
)
def test_the_line_that_names_the_error_is_found(text: str | None, line: str) -> None:
    assert headline(text) == line


def test_an_error_of_postgresql_is_named_and_not_the_place_in_its_sql(
    postgres_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Rowlock(postgres_queue)) as app:

        @app.task(retry=Retry(max_attempts=2, base=0.0))
        def ask(ctx: JobContext) -> None:
            with ctx.transaction() as tx:
                tx.execute("SELECT nothing")

        job = ask.enqueue()
        with caplog.at_level(logging.WARNING):
            app.worker(concurrency=1).run(until_empty=True)
        with pytest.raises(JobFailed, match=r'UndefinedColumn: column "nothing" does not exist$'):
            app.result(job.id)
        assert 'column "nothing" does not exist; again in' in caplog.text


def test_a_failure_without_a_traceback_is_named_by_its_first_line(app: Rowlock) -> None:
    @app.task
    def give_up() -> None:
        raise Fail("declined\n  by the bank")

    job = give_up.enqueue()
    app.worker(concurrency=1).run(until_empty=True)
    with pytest.raises(JobFailed, match=r"declined$"):
        app.result(job.id)


def test_an_expired_job_is_named_with_the_last_line_of_its_last_error(app: Rowlock) -> None:
    @app.task(expires=60)
    def read() -> None:
        raise OSError("disk gone")

    job = read.enqueue()
    app.worker(concurrency=1).run(until_empty=True)
    assert app.store.expire(1, now=time.time() + 100) == 1
    reason = r"its deadline to start \(expires\) has passed; its last error was: OSError: disk gone$"
    with pytest.raises(JobFailed, match=reason):
        app.result(job.id)
