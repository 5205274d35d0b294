"""Limits as users write them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rowlock import ConfigurationError
from rowlock.files import limits
from rowlock.files.patterns import matcher


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [("500MB", 500_000_000), ("1.5 GB", 1_500_000_000), ("1KB", 1_000), ("1KiB", 1_024), (7, 7), ("3b", 3)],
)
def test_a_size_is_read(given: Any, bytes_: int) -> None:
    assert limits.size("max_size", given) == bytes_


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30d", 30 * 86_400), ("12h", 43_200), ("90s", 90), (60, 60), (timedelta(days=1), 86_400)],
)
def test_an_age_is_read(given: Any, seconds: float) -> None:
    assert limits.age("max_age", given) == seconds


def test_free_space_is_a_share_of_the_disk_or_a_size() -> None:
    assert limits.free("min_free", "20%").of(1_000) == 200
    assert limits.free("min_free", "500MB").of(1_000) == 500_000_000


@pytest.mark.parametrize(
    "given", ["", "%", "0%", "101%", "-5%", "20 percent", "20", "MB", "5XB", 0, -1, True, None, "1e9", "30d"]
)
def test_free_space_that_does_not_parse_is_refused_with_the_forms_that_do(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'min_free=.*"20%" or "500MB"'):
        limits.free("min_free", given)


@pytest.mark.parametrize(
    "given", ["20%", "", "d", "30", "5 parsecs", 0, float("nan"), float("inf"), False, [], "-3d"]
)
def test_an_age_that_does_not_parse_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'max_age=.*"30d"'):
        limits.age("max_age", given)


def test_a_size_is_no_share() -> None:
    with pytest.raises(ConfigurationError, match=r'max_size=.*"500MB"'):
        limits.size("max_size", "20%")


def test_a_limit_may_be_a_function_that_is_asked_each_time(tmp_path: Path) -> None:
    answers = iter(["10%", None, "lots"])
    made = limits.Limits("janitor", {"min_free": lambda: next(answers)})
    now = made.read(str(tmp_path), nullcontext)
    assert now.min_free == limits.Free(share=0.1).of(now.disk.total)
    assert made.read(str(tmp_path), nullcontext).min_free is None
    with pytest.raises(ConfigurationError, match="min_free='lots'"):
        made.read(str(tmp_path), nullcontext)


def test_a_limit_function_may_ask_the_database(tmp_path: Path) -> None:
    made = limits.Limits("janitor", {"max_size": lambda tx: tx["size"]})
    transaction = SimpleNamespace(connection={"size": "1KB"})
    assert made.read(str(tmp_path), lambda: nullcontext(transaction)).max_size == 1_000


def test_a_limit_function_with_other_arguments_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="must be a function of"):
        limits.Limits("janitor", {"max_size": lambda one, two: 1})


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*.wav", ["a.wav", ".wav", "a\n.wav"], ["d/a.wav", "a.WAV", "a.wav.tmp"]),
        ("**/*.wav", ["a.wav", "d/a.wav", "d/e/a b.wav"], ["a.mp3"]),
        ("raw/**", ["raw/a", "raw/d/a"], ["raw", "rawer/a", "other/raw/a"]),
        ("rec-[0-9]?.wav", ["rec-1x.wav"], ["rec-xx.wav", "rec-1.wav"]),
        ("[!a]*", ["b"], ["a", "d/b"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_a_pattern_fits_paths_below_the_folder(pattern: str, fitting: list[str], others: list[str]) -> None:
    fits = matcher(pattern)
    assert [path for path in fitting if not fits(path)] == []
    assert [path for path in others if fits(path)] == []


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "a/../b", "a//b", "a\\b", None, "\x00"])
def test_a_pattern_that_leads_out_of_the_folder_is_refused(pattern: Any) -> None:
    with pytest.raises(ConfigurationError, match="pattern="):
        matcher(pattern)
