"""What may happen next in the model of consumers' claims, and how often."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rowlock.job import Ending

KEYS = range(1, 6)
BUDGETS = st.tuples(*[st.sampled_from([3, 2, 1])] * 2)  # attempts of each consumer
How = dict[str, Any]
TWO = st.integers(0, 1)
ANY = st.integers(0, 99)  # one of however many there are
_OFTEN = (Ending.RETRY, Ending.RELEASED, Ending.COMPLETED, Ending.COMPLETED)
HOW = st.fixed_dictionaries(
    {
        "how": st.sampled_from([*Ending, *_OFTEN, "transaction", "report", "report"]),
        "lightly": st.booleans(),
        "result": st.sampled_from([None, {"calls": 2}]),
        # What a function may answer for each row of a batch.
        "answers": st.tuples(*[st.sampled_from([None, {"calls": 2}, False, False, True])] * 2),
    }
)
CLAIM = {
    "which": st.sampled_from([0, 0, 0, 1, 1, 1, None]),
    "number": TWO,
    "count": st.integers(1, 3),
    "isolate": st.sampled_from([True, True, False]),
    "sweep": st.sampled_from([True, True, False]),
}
AFTER = st.sampled_from([None, None, 0, 10, 10, 61, 61, 61])
# Every step with all that it needs, and as often as it is worth. One rule for all: of several, Hypothesis
# leaves some out in each example, and without claims, ends and time there is nothing to see.
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "claim": (4, CLAIM),
    "end": (6, {"late": st.sampled_from([False, False, False, True]), "pick": ANY, "how": HOW, "then": HOW}),
    "time_passes": (4, {"after": AFTER, "then": HOW, **CLAIM, "which": TWO}),
    "write": (3, {"key": st.sampled_from(KEYS), "pick": ANY}),
    "maintain": (2, {"which": TWO, "number": TWO, "first": st.sampled_from(["", "prune", "prune", "retry"])}),
}
STEP = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries(values))
        for name, (often, values) in STEPS.items()
        for _ in range(often)
    ]
)
