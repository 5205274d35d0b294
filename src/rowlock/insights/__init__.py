"""Read-only numbers and reasons, for every front end: statistics, and the doctor's checks.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.checks import doctor
from rowlock.insights.counting import Stats, stats
from rowlock.insights.finding import Finding

__all__ = ["Finding", "Stats", "doctor", "stats"]
