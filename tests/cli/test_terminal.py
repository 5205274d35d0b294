"""What a person at a terminal sees: colours, bars, and columns that fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from rowlock import Rowlock
from rowlock.cli import show
from tests.cli.commands import CommandLine, environment_with
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no pty on Windows")


def on_a_terminal(rowlock: CommandLine, *words: object, columns: int = 80, **environment: str) -> str:
    """Run a command on a pseudo-terminal of that width; returns all that it wrote."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rowlock", *map(str, words)],
        cwd=rowlock.folder,
        env=environment_with({"TERM": "xterm-256color", **environment}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    process.wait(timeout=60)
    return written.decode()


def plain(written: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n").splitlines()


def test_tables_fit_the_terminal_and_have_colours_unless_told_otherwise(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    shop.enqueue("a_task_with_a_rather_long_name", queue="queue-with-a-long-name", priority=-100)
    shop.cancel(shop.enqueue("add").id)
    written = on_a_terminal(rowlock, "jobs", "-d", "jobs.db", columns=60)
    assert "\x1b[35mcancelled" in written
    lines = plain(written)
    assert all(len(line) <= 60 for line in lines) and "…" in lines[2] and "-100" in lines[2]
    assert [line.split()[0] for line in lines] == ["id", "2", "1"]
    assert "\x1b[35m" not in on_a_terminal(rowlock, "jobs", "-d", "jobs.db", NO_COLOR="1")


def test_watch_draws_a_bar(rowlock: CommandLine, shop: Rowlock) -> None:
    job = shop.enqueue("wait_for_the_go")
    with rowlock.start("worker", "shop:queue"):
        eventually(lambda: shop.job(job.id).progress)
        written = on_a_terminal(rowlock, "watch", job.id, "-d", "jobs.db", "--timeout", "0.5")
        assert "running ━" in " ".join(plain(written)) and "25%" in written and "waiting" in written
        rowlock.write("go", "")
        assert "completed after" in plain(on_a_terminal(rowlock, "watch", job.id, "-d", "jobs.db"))[-1]


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    assert show.visible("a\x1b[31mb\x9b\x07\n\tc") == "a\\x1b[31mb\\x9b\\x07\n\tc"
    assert show.headline("Traceback (most recent call last):\n  ...\nValueError: no\r\n") == "ValueError: no"
    assert show.headline(None) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.6, "9.6 s"),
        (45, "45 s"),
        (119, "119 s"),
        (150, "2 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_lengths_of_time_are_told_in_a_fitting_unit(seconds: float, words: str) -> None:
    assert show.duration(seconds) == words
