"""`rowlock demo`: it runs by itself, and what it left can be looked at with the commands it names."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from tests.cli.commands import CommandLine
from tests.cli.test_terminal import on_a_terminal, plain


def test_the_demo_runs_sums_up_and_leaves_a_queue_to_look_at(
    rowlock: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rowlock/__main__.py"])
    ended = rowlock.here("demo", "--database", "demo.db", "--jobs", "60")
    assert ended.err == ""  # no log lines
    said = ended.out
    completed, retried, failed = map(
        int,
        re.search(r"(\d+) completed, (\d+) retried, (\d+) failed for good in .* jobs/s", said).groups(),  # type: ignore[union-attr]
    )
    assert completed + failed == 60 and retried >= 4 and failed == 2
    assert "The queue is in demo.db" in said and said.count("waiting to retry") >= 3
    looks = [shlex.split(line)[3:] for line in said.splitlines() if line.startswith("  ")]
    assert [look[0] for look in looks] == ["jobs", "job", "queues", "doctor"]
    assert "the card was declined" in rowlock.here(*looks[0]).out
    assert "ConnectionError: the mail server hung up" in rowlock.here(*looks[1]).out
    assert "images" in rowlock.here(*looks[2]).out
    assert rowlock.here(*looks[3]).out.endswith("all is well\n")

    assert rowlock.refused_here("demo", "--database", "demo.db").startswith("demo.db exists already")
    assert "at least 10" in rowlock.refused_here("demo", "--jobs", "9", code=2)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty on Windows")
def test_on_a_terminal_the_demo_draws_bars(rowlock: CommandLine) -> None:
    written = on_a_terminal(rowlock, "demo", "--jobs", "10", TMPDIR=str(rowlock.folder))
    assert "\x1b[32mcompleted" in written and "━" in written and "yearly report" in written
    assert "8 completed" in "\n".join(plain(written)) or "9 completed" in "\n".join(plain(written))
    assert len(list(rowlock.folder.glob("rowlock-demo-*/demo.db"))) == 1
