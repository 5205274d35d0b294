"""The power is cut in the middle of everything, and the disk keeps only what was synced for sure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos import strace
from tests.chaos.power_cuts import cut_the_power
from tests.chaos.seeds import seed

pytest.importorskip("apsw")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the simulated disk is a unix one")


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, seed(), runs=2, cuts=15, steps=80)
    assert verdict.acknowledged > 100
    assert (verdict.cuts, verdict.lost, verdict.damaged, verdict.half) == (30, 0, 0, 0), verdict


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_thousand_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, seed(), runs=40, cuts=25)
    assert (verdict.cuts, verdict.lost, verdict.damaged, verdict.half) == (1000, 0, 0, 0), verdict


needs_strace = pytest.mark.skipif(not strace.works(), reason="strace is not there, or may not trace")


@needs_strace
def test_pythons_own_sqlite_loses_nothing_in_a_power_cut_either(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, seed(), runs=1, cuts=15, steps=80, libraries=["sqlite3"])
    assert verdict.acknowledged > 50
    assert (verdict.cuts, verdict.lost, verdict.damaged, verdict.half) == (15, 0, 0, 0), verdict


@needs_strace
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_pythons_own_sqlite_loses_nothing_in_hundreds_of_power_cuts(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, seed(), runs=20, cuts=25, libraries=["sqlite3"])
    assert (verdict.cuts, verdict.lost, verdict.damaged, verdict.half) == (500, 0, 0, 0), verdict


# -- the simulation itself: where SQLite is told to sync less, it has to show ------------------------


def test_with_synchronous_normal_the_simulated_disk_loses_acknowledged_jobs(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, 1, runs=1, cuts=15, steps=80, synchronous="NORMAL")
    assert verdict.lost > 0 and verdict.damaged == 0, verdict


def test_with_synchronous_off_the_simulated_disk_damages_the_file(tmp_path: Path) -> None:
    verdict = cut_the_power(tmp_path, 1, runs=1, cuts=20, steps=80, synchronous="OFF")
    assert verdict.lost > 0 and verdict.damaged > 0, verdict
