"""Runs every code block of the README and of the pages in docs/, each page as one story."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.blocks import play, read_blocks
from tests.servers.postgres import plain_names

ROOT = Path(__file__).parents[2]
# Their readers have set ROWLOCK_DATABASE_URL to an empty schema.
NEED_POSTGRES = {"docs/postgresql.md", "docs/moving-a-poller.md"}
NEED_REDIS = {"docs/relay.md"}  # and REDIS_URL


def pages() -> list[str]:
    """The README and docs/; a decision page is history and may show code that no longer runs."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [page.relative_to(ROOT).as_posix() for page in found if page.is_file()]
    return [name for name in names if not name.startswith("docs/decisions/")]


@pytest.mark.skipif(os.name == "nt", reason="the commands of the pages are written for a POSIX shell")
@pytest.mark.parametrize("page", pages())
def test_the_code_blocks_run_as_the_page_says(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {}
    if page in NEED_POSTGRES:
        # By plain names: the tables of the pages' readers are where rowlock's are.
        settings["ROWLOCK_DATABASE_URL"] = plain_names(request.getfixturevalue("postgres_schema"))
    if page in NEED_REDIS:
        settings["REDIS_URL"] = request.getfixturevalue("redis").url
    for block in read_blocks((ROOT / page).read_text(encoding="utf-8"), page):
        play(block, tmp_path, settings)
