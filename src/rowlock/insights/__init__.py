"""Read-only numbers and reasons, for every front end: statistics, consumers, the doctor, a probe.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.check import Probe, probe
from rowlock.insights.consuming import ConsumerRecord, KnownConsumer, consumers, known_consumers
from rowlock.insights.counting import Stats, stats
from rowlock.insights.doctor import configured, doctor
from rowlock.insights.finding import Finding

__all__ = [
    "ConsumerRecord",
    "Finding",
    "KnownConsumer",
    "Probe",
    "Stats",
    "configured",
    "consumers",
    "doctor",
    "known_consumers",
    "probe",
    "stats",
]
