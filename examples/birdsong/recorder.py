"""A stand-in for the recorder: writes one recording after the other, raw and processed; knows no database."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from examples.birdsong.sounds import PROCESSED_RATE, RAW_RATE, for_people, synthesise, write_wav


def record(folder: Path, number: int) -> None:
    """Write recording `number`: the raw file as it comes, the processed one when it is whole."""
    raw, processed = folder / "raw", folder / "processed"
    raw.mkdir(parents=True, exist_ok=True)
    processed.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{number:04}.wav"
    samples = synthesise(number)
    write_wav(raw / name, samples, RAW_RATE)
    write_wav(processed / f"{name}.part", for_people(samples), PROCESSED_RATE)
    os.replace(processed / f"{name}.part", processed / name)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--first", type=int, default=1, help="the number of the first recording")
    options.add_argument("--count", type=int, default=10)
    options.add_argument("--every", type=float, default=0.2, help="seconds between two recordings")
    given = options.parse_args()
    for number in range(given.first, given.first + given.count):
        record(given.folder, number)
        time.sleep(given.every)


if __name__ == "__main__":
    main()
