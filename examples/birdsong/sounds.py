"""What can be heard at the station, made up from a number, and WAV files of it; finds nothing."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RAW_RATE, PROCESSED_RATE = 192_000, 24_000  # samples per second: with ultrasound, and what people hear
SECONDS = 0.8
NOISE = 0.02
_SLOTS, _SLOT = 3, 0.25  # at most one call of each kind in a slot, so that calls never touch

Samples = NDArray[np.float64]


class Species(NamedTuple):
    name: str
    low: float  # Hz
    high: float
    seconds: float  # of one call


BIRDS = (
    Species("blackbird", 1_800, 2_600, 0.12),
    Species("great tit", 4_000, 5_500, 0.09),
    Species("firecrest", 7_000, 8_500, 0.07),
)
BATS = (
    Species("noctule", 20_000, 26_000, 0.020),
    Species("pipistrelle", 42_000, 60_000, 0.012),
    Species("horseshoe bat", 78_000, 84_000, 0.040),
)


class Call(NamedTuple):
    species: Species
    start: float


def scene(number: int) -> list[Call]:
    """The calls in recording `number`: one or two birds, and one or two bats."""
    chance = np.random.default_rng(number)
    return [
        Call(kind[chance.integers(len(kind))], 0.04 + _SLOT * int(slot) + chance.uniform(0, 0.08))
        for kind in (BIRDS, BATS)
        for slot in sorted(chance.choice(_SLOTS, size=chance.integers(1, 3), replace=False))
    ]


def synthesise(number: int) -> Samples:
    """Recording `number` as the microphone hears it: noise, birds that sweep up, bats that sweep down."""
    chance = np.random.default_rng(1_000_000 + number)
    heard = chance.normal(0.0, NOISE, int(SECONDS * RAW_RATE))
    for species, start in scene(number):
        time = np.arange(int(species.seconds * RAW_RATE)) / RAW_RATE
        begin, end = (species.low, species.high) if species in BIRDS else (species.high, species.low)
        phase = 2 * np.pi * (begin * time + (end - begin) * time**2 / (2 * species.seconds))
        first = int(start * RAW_RATE)
        heard[first : first + len(time)] += 0.3 * np.hanning(len(time)) * np.sin(phase)
    return heard


def for_people(raw: Samples) -> Samples:
    """The processed recording: without ultrasound, at the lower rate."""
    spectrum = np.fft.rfft(raw)
    count = len(raw) * PROCESSED_RATE // RAW_RATE
    return np.fft.irfft(spectrum[: count // 2 + 1], count) * (count / len(raw))


def write_wav(path: Path, samples: Samples, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes())


def read_wav(path: Path) -> tuple[Samples, int]:
    with wave.open(str(path), "rb") as file:
        data = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return data / 32_768, file.getframerate()
