"""How a user's condition is taken apart at its top-level ANDs, and stays whole in doubt."""

from __future__ import annotations

import pytest

from rowlock.consumers.conditions import may_read_clock, parts


@pytest.mark.parametrize(
    "condition",
    [
        "a = 1",
        "a = 1 OR b = 2 AND c = 3",
        "a = 1 AND b = 2 or c = 3",
        "a BETWEEN 1 AND 2",
        "(a = 1 AND b = 2)",
        "CASE WHEN a AND b THEN c AND d ELSE 1 END",
        "note = 'this AND that'",
        "note = 'it''s AND that'",
        '"this AND that" = 1',
        "`this AND that` = 1",
        "[this AND that] = 1",
        "note = $$this AND that$$ and_more",
        "note = $x$this AND $$ that$x$",
        r"note = E'it\'s AND that'",
        "a = 1 /* AND b = 2 */",
        "a = 1 -- AND b = 2",
        "a = ARRAY[b AND c]",
        # Not surely understood:
        "a = 1 AND",
        "AND a = 1",
        "a = 1) AND (b = 2",
        "a = 1 AND (b = 2",
        "a = 'open AND b = 2",
        "a = 1; AND b = 2",
        "a = 1 AND end = 2",
        "a = 1 /* one /* two */ AND b = 2 */",
        "a BETWEEN 1",
    ],
)
def test_what_is_no_plain_list_of_ands_stays_whole(condition: str) -> None:
    assert parts(condition) == [condition]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("a = 1 AND b = 2", ["a = 1", "b = 2"]),
        ("a = 1\nand\tb = 2 And c", ["a = 1", "b = 2", "c"]),
        ("a BETWEEN 1 AND 2 AND b = 3", ["a BETWEEN 1 AND 2", "b = 3"]),
        ("a NOT BETWEEN (1) AND 2 AND b BETWEEN 3 AND 4", ["a NOT BETWEEN (1) AND 2", "b BETWEEN 3 AND 4"]),
        ("(a OR b)AND(c OR d)", ["(a OR b)", "(c OR d)"]),
        ("CASE WHEN a THEN b AND c END AND d", ["CASE WHEN a THEN b AND c END", "d"]),
        ("a = 'x AND y' AND b = \"AND\"", ["a = 'x AND y'", 'b = "AND"']),
        ("a = 1 -- it's first\nAND b = 2", ["a = 1 -- it's first", "b = 2"]),
        ("a = 1 /* AND */ AND b = 2", ["a = 1 /* AND */", "b = 2"]),
        ("brand = 1 AND android IS NOT NULL", ["brand = 1", "android IS NOT NULL"]),
        ("f(a, b) AND a IN (1, 2)", ["f(a, b)", "a IN (1, 2)"]),
        ("größe > 1 AND a = 1", ["größe > 1", "a = 1"]),
        ("NOT a AND b", ["NOT a", "b"]),
    ],
)
def test_a_condition_is_taken_apart_at_its_top_level_ands(condition: str, found: list[str]) -> None:
    assert parts(condition) == found


@pytest.mark.parametrize(
    ("condition", "may"),
    [
        ("a < datetime('now')", True),
        ("a < DateTime ('now')", True),
        ("a < \"datetime\"('now')", True),
        ("a < [datetime]('now')", True),
        ("a < `date`(b)", True),
        ("a < strftime /* x */ ('%s')", True),
        ("CASE WHEN a = 1 THEN julianday() < b END", True),
        ("time > 5 AND date IN (1)", False),
        ("note = 'datetime(1)'", False),
        ("my_date(a) = 1 -- date(a)", False),
    ],
)
def test_a_call_of_a_function_of_time_may_read_the_clock(condition: str, may: bool) -> None:
    assert may_read_clock(condition) is may
