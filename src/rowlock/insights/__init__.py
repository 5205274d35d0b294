"""Read-only numbers and reasons, for every front end: statistics, consumers, files, the doctor, a probe.

Speaks to the store's reading verbs only; front ends add nothing but layout.
"""

from rowlock.insights.check import Probe, probe
from rowlock.insights.consuming import ConsumerRecord, consumers
from rowlock.insights.counting import Stats, stats
from rowlock.insights.doctor import doctor
from rowlock.insights.filing import FileServiceRecord, file_services
from rowlock.insights.finding import Finding

__all__ = [
    "ConsumerRecord",
    "FileServiceRecord",
    "Finding",
    "Probe",
    "Stats",
    "consumers",
    "doctor",
    "file_services",
    "probe",
    "stats",
]
