"""That coverage is off where `no_cover` says so, also in the processes of pytest-xdist."""

from __future__ import annotations

import pytest
from coverage import Coverage


@pytest.mark.no_cover
def test_what_runs_the_lines_of_others_again_is_not_measured() -> None:
    assert Coverage.current() is None
