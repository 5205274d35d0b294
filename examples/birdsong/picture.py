"""Draws spectrograms with detections into a PNG, with numpy and zlib alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from examples.birdsong.analysis import spectrogram
from examples.birdsong.sounds import Samples
from numpy.typing import NDArray

WIDTH, HEIGHT, LEFT, MARGIN = 1000, 300, 70, 30
INK, BOX, PAPER = (40, 40, 40), (255, 80, 60), (255, 255, 255)

Picture = NDArray[np.uint8]

# Letters of 3 x 5 dots, one octal digit per line.
# fmt: off
_LETTERS = {
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644", "G": "34553",
    "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557",
    "V": "55552", "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "0": "75557", "1": "26227",
    "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71111", "8": "75757",
    "9": "75717", ".": "00002",
}
# fmt: on


class Box(NamedTuple):
    name: str
    start: float  # seconds
    end: float
    low: float  # Hz
    high: float


def draw(path: Path, panels: Sequence[tuple[str, Samples, int, Sequence[Box]]]) -> None:
    """One panel for each (title, samples, rate, boxes), one above the other."""
    drawn = [_panel(*panel) for panel in panels]
    _write_png(path, np.concatenate(drawn))


def _panel(title: str, samples: Samples, rate: int, boxes: Sequence[Box]) -> Picture:
    around = np.pad(samples, 256, mode="reflect")  # so that the first frame's middle is the beginning
    energies = np.log10(spectrogram(around, hop=max(8, len(samples) // WIDTH)) + 1e-9).T[::-1]
    rows = np.arange(HEIGHT) * energies.shape[0] // HEIGHT
    columns = np.arange(WIDTH) * energies.shape[1] // WIDTH
    low, high = np.percentile(energies, 30), energies.max()
    light = np.clip((energies[rows][:, columns] - low) / (high - low), 0, 1)[..., None]
    dark, bright = np.array((20, 15, 60)), np.array((255, 240, 170))
    canvas = np.full((HEIGHT + 2 * MARGIN, LEFT + WIDTH + MARGIN, 3), PAPER, dtype=np.uint8)
    canvas[MARGIN : MARGIN + HEIGHT, LEFT : LEFT + WIDTH] = dark + light * (bright - dark)
    seconds, highest = len(samples) / rate, rate / 2

    def x(moment: float) -> int:
        return LEFT + int(np.clip(moment / seconds, 0, 1) * (WIDTH - 1))

    def y(frequency: float) -> int:
        return MARGIN + HEIGHT - 1 - int(np.clip(frequency / highest, 0, 1) * (HEIGHT - 1))

    _text(canvas, title, LEFT, 8, INK)
    for share in (0.25, 0.5, 0.75, 1.0):
        _text(canvas, f"{share * highest / 1000:g} KHZ", 6, y(share * highest) - 2, INK)
        _text(canvas, f"{share * seconds:.1f} S", x(share * seconds) - 30, MARGIN + HEIGHT + 8, INK)
    for box in boxes:
        edges = x(box.start) - 6, x(box.end) + 6, y(box.high) - 6, y(box.low) + 6
        _rectangle(canvas, *edges)
        _text(canvas, box.name, edges[1] + 6, edges[2], BOX)
    return canvas


def _rectangle(canvas: Picture, left: int, right: int, top: int, bottom: int) -> None:
    left, top = max(left, LEFT), max(top, MARGIN)
    right, bottom = min(right, LEFT + WIDTH - 1), min(bottom, MARGIN + HEIGHT - 1)
    for line in (0, 1):
        canvas[[top + line, bottom - line], left : right + 1] = BOX
        canvas[top : bottom + 1, [left + line, right - line]] = BOX


def _text(
    canvas: Picture, text: str, left: int, top: int, colour: tuple[int, int, int], dot: int = 2
) -> None:
    for place, letter in enumerate(text.upper()):
        for line, digit in enumerate(_LETTERS.get(letter, "00000")):
            for column in range(3):
                if int(digit, 8) & (4 >> column):
                    down, across = top + line * dot, left + (place * 4 + column) * dot
                    canvas[down : down + dot, across : across + dot] = colour


def _write_png(path: Path, picture: Picture) -> None:
    height, width, _ = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + chunk(b"IEND", b"")
    )
