"""Read-only numbers and reasons, for every front end: statistics, consumers, files, the doctor, a probe.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.check import Probe, probe
from rowlock.insights.configured import configured
from rowlock.insights.consuming import ConsumerRecord, KnownConsumer, consumers, known_consumers
from rowlock.insights.counting import Stats, stats
from rowlock.insights.doctor import doctor
from rowlock.insights.filing import FileServiceRecord
from rowlock.insights.finding import Finding

__all__ = [
    "ConsumerRecord",
    "FileServiceRecord",
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
