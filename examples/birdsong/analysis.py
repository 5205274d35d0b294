"""Finds calls in samples: peaks of a spectrogram, or of a bank of filters; knows no files and no tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from examples.birdsong.sounds import RAW_RATE, Samples, Species
from numpy.typing import NDArray

_THRESHOLD = 40.0  # times the median energy; the highest peak of noise alone is at about 16
_GAP = 3  # frames below the threshold that a call may have
_LEAST = 2  # frames above it that make a call

Energies = NDArray[np.float64]  # frames x frequencies


class Found(NamedTuple):
    species: str
    start: float  # seconds
    end: float
    low: float  # Hz
    high: float


def frames(samples: Samples, width: int, hop: int) -> Samples:
    return np.lib.stride_tricks.sliding_window_view(samples, width)[::hop]


def spectrogram(samples: Samples, width: int = 512, hop: int = 128) -> Energies:
    """The energy of each frequency up to half the rate, at each moment."""
    return np.abs(np.fft.rfft(frames(samples, width, hop) * np.hanning(width))) ** 2


def find_birds(samples: Samples, rate: int, birds: Sequence[Species]) -> list[Found]:
    """The calls of these birds, by the peaks of the spectrogram."""
    width, hop = 512, 128
    frequencies = np.fft.rfftfreq(width, 1 / rate)
    heard = frequencies > 1_000  # below is wind
    energies = spectrogram(samples, width, hop)[:, heard]
    return list(_calls(energies, frequencies[heard], width, hop, rate, birds))


class FilterBank:
    """Band-pass filters from 15 to 95 kHz; stands for a model that takes its time to load."""

    WIDTH, HOP = 384, 96

    def __init__(self, load_seconds: float = 1.0) -> None:
        started = time.monotonic()
        self.centres = np.arange(15_000, 95_000, 1_000.0)
        moments = np.arange(self.WIDTH) / RAW_RATE
        tones = np.exp(-2j * np.pi * self.centres[:, None] * moments)
        self._filters = (tones * np.hanning(self.WIDTH)).T
        time.sleep(max(0.0, load_seconds - (time.monotonic() - started)))

    def find(self, samples: Samples, bats: Sequence[Species]) -> list[Found]:
        """The calls of these bats, by the filter that answers most at each moment."""
        energies = np.abs(frames(samples, self.WIDTH, self.HOP) @ self._filters) ** 2
        return list(_calls(energies, self.centres, self.WIDTH, self.HOP, RAW_RATE, bats))


def _calls(
    energies: Energies,
    frequencies: NDArray[np.floating[Any]],
    width: int,
    hop: int,
    rate: int,
    known: Sequence[Species],
) -> Iterator[Found]:
    """Moments with a peak far above the noise, put together while they follow each other."""
    loud = np.flatnonzero(energies.max(axis=1) > _THRESHOLD * np.median(energies))
    peaks = frequencies[energies.argmax(axis=1)]
    for call in np.split(loud, np.flatnonzero(np.diff(loud) > _GAP) + 1):
        if len(call) < _LEAST:
            continue
        middle = float(np.median(peaks[call]))
        species = min(known, key=lambda one: abs((one.low + one.high) / 2 - middle))
        if not species.low * 0.9 <= middle <= species.high * 1.1:
            continue
        half = width / 2  # a frame hears what is around its middle
        start, end = (call[0] * hop + half) / rate, (call[-1] * hop + half) / rate
        yield Found(
            species.name, float(start), float(end), float(peaks[call].min()), float(peaks[call].max())
        )
