"""Writes PNG files with each of PNG's filters, or with a header that says what is not so."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def filtered_png(
    pixels: NDArray[np.uint8],
    kind: int,
    *,
    height: int | None = None,
    width: int | None = None,
    depth: int = 8,
) -> bytes:
    """A PNG file with these pixels, all lines under one filter."""
    colours = {1: 0, 3: 2, 4: 6}[pixels.shape[2]]
    header = struct.pack(
        ">IIBBBBB", width or pixels.shape[1], height or pixels.shape[0], depth, colours, 0, 0, 0
    )
    filtered = (pixels - _predicted(pixels.astype(int), kind)) % 256
    lines = filtered.astype(np.uint8).reshape(len(pixels), -1)
    data = zlib.compress(b"".join(bytes([kind]) + line.tobytes() for line in lines))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _predicted(pixels: NDArray[np.int64], kind: int) -> NDArray[np.int64]:
    """What each filter expects a pixel to be, by its neighbours."""
    edged = np.pad(pixels, ((1, 0), (1, 0), (0, 0)))
    left, above, corner = edged[1:, :-1], edged[:-1, 1:], edged[:-1, :-1]
    if kind == 3:
        return (left + above) // 2
    if kind == 4:
        choices = np.stack([left, above, corner])
        return np.take_along_axis(choices, abs(left + above - corner - choices).argmin(axis=0)[None], 0)[0]
    return {1: left, 2: above}.get(kind, np.zeros_like(pixels))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
