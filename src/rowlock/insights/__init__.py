"""Read-only numbers and reasons, for every front end: statistics, the doctor's checks, and a probe's.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.checks import doctor
from rowlock.insights.counting import Stats, stats
from rowlock.insights.finding import Finding
from rowlock.insights.probe import Probe, probe

__all__ = ["Finding", "Probe", "Stats", "doctor", "probe", "stats"]
