"""Which number of the source is which number of the target."""

from __future__ import annotations

import pytest

from rowlock.copying.numbers import Numbers, Range


def test_numbers_stay_the_same_in_an_empty_target_and_go_on_while_nobody_else_draws() -> None:
    numbers = Numbers([])
    assert numbers.extend(1, 50, drawn=0, keep=True) == 50
    assert numbers.extend(51, 80, drawn=50, keep=False) == 80
    assert numbers.ranges == [Range(1, 80, 0)] and numbers.kept and numbers(77) == 77


def test_numbers_that_others_have_drawn_are_stepped_over() -> None:
    numbers = Numbers([])
    assert numbers.extend(1, 50, drawn=7, keep=False) == 57
    assert numbers.extend(51, 60, drawn=58, keep=False) == 68
    assert [numbers(n) for n in (1, 50, 51, 60)] == [8, 57, 59, 68] and not numbers.kept
    with pytest.raises(LookupError, match="no number was reserved for 61"):
        numbers(61)


def test_two_ranges_never_overlap_on_the_target_even_if_its_sequence_was_set_back() -> None:
    numbers = Numbers([Range(1, 50, 0)])
    assert numbers.extend(51, 60, drawn=20, keep=False) == 60
    assert [numbers(50), numbers(51)] == [50, 51]
