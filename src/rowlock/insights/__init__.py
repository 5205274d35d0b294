"""Read-only numbers and reasons, for every front end: statistics, consumers, the doctor's checks, a probe's.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.check import Probe, probe
from rowlock.insights.consuming import ConsumerRecord, consumers
from rowlock.insights.counting import Stats, stats
from rowlock.insights.doctor import doctor
from rowlock.insights.finding import Finding

__all__ = ["ConsumerRecord", "Finding", "Probe", "Stats", "consumers", "doctor", "probe", "stats"]
