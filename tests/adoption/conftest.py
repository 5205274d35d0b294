"""Databases in which teams keep their tables under plain names, and the processes that work on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adoption.crew import Crew
from tests.servers.postgres import plain_names

Hire = Callable[[str, str], Crew]


@pytest.fixture
def postgres_team(postgres_schema: str) -> str:
    return plain_names(postgres_schema)


@pytest.fixture
def sqlite_team(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'team.db'}"


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Hire]:
    """Makes the processes that work on a team's table."""
    if sys.platform == "win32":
        pytest.skip("freezes processes with POSIX signals")
    crews: list[Crew] = []

    def made(team: str, url: str) -> Crew:
        crews.append(Crew(team, url, tmp_path))
        return crews[-1]

    yield made
    for crew in crews:
        crew.end()
