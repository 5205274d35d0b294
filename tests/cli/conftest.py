"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rowlock import Rowlock
from tests.cli.commands import SHOP, CommandLine


@pytest.fixture
def rowlock(tmp_path: Path) -> CommandLine:
    """The `rowlock` command in an empty folder."""
    return CommandLine(tmp_path)


@pytest.fixture
def shop(rowlock: CommandLine) -> Iterator[Rowlock]:
    """A folder with shop.py, and its queue as seen from here: the tasks are the other process's."""
    rowlock.write("shop.py", SHOP)
    queue = Rowlock(f"sqlite:///{rowlock.folder / 'jobs.db'}")
    yield queue
    queue.close()
