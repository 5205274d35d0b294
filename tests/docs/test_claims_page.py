"""docs/claims.md shows the statements that the code sends."""

from __future__ import annotations

from tests.docs.claims_page import PAGE, statements, written


def test_the_page_shows_the_claims_as_they_are_sent() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `python -m tests.docs.claims_page`, and read what has changed"
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(statements())
