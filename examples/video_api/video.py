"""Raw grey video: a header, then one byte per pixel. Made here, measured here, and drawn as a small PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HEADER = struct.Struct("<4sIII")  # the mark, width, height, frames
MARK = b"GREY"
CUT = 25.0  # mean difference of two frames' pixels from which on it is another scene


def generate(frames: int, scenes: int, size: tuple[int, int] = (160, 120), seed: int = 1) -> bytes:
    """A video of so many scenes, each a moving gradient of its own brightness in some noise."""
    width, height = size
    random = np.random.default_rng(seed)
    x = np.linspace(0, 40, width)[None, :] + np.linspace(0, 20, height)[:, None]
    parts = [HEADER.pack(MARK, width, height, frames)]
    for number in range(frames):
        level = 40 + 120 * (number * scenes // frames % 2) + 5 * (number * scenes // frames)
        picture = level + np.roll(x, number, axis=1) + random.normal(0, 2, (height, width))
        parts.append(np.clip(picture, 0, 255).astype(np.uint8).tobytes())
    return b"".join(parts)


def frames_of(path: Path) -> Iterator[tuple[int, int, np.ndarray]]:
    """Each frame with its number and how many there are; raises ValueError if it is no such video."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MARK):
            raise ValueError("it is no raw grey video")
        _, width, height, count = HEADER.unpack(head)
        for number in range(count):
            pixels = file.read(width * height)
            if len(pixels) < width * height:
                raise ValueError(f"it ends within frame {number} of {count}")
            yield number, count, np.frombuffer(pixels, np.uint8).reshape(height, width)


def png(picture: np.ndarray) -> bytes:
    """A grey picture as a PNG."""
    height, width = picture.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + row.tobytes() for row in picture)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
