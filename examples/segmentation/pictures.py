"""Pictures to segment, made here: coloured shapes with noise; and PNG files, with numpy and zlib alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 320, 240
ACROSS, DOWN = 4, 3  # one shape at most in each cell of a grid, so that no two touch
BACKGROUND = (60, 66, 72)
COLOURS = [(214, 69, 65), (38, 166, 91), (65, 131, 215), (244, 179, 80), (190, 144, 212)]
LARGEST_SIDE = 4_096
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 6: 4}  # PNG's colour types: grey, RGB, RGBA

Picture = NDArray[np.uint8]  # height x width x 3


class NotAPicture(ValueError):
    """The bytes are no PNG, or a kind of PNG that is not read here."""


def scene(number: int) -> tuple[Picture, int]:
    """The picture of this number, and how many shapes are in it."""
    chance = np.random.default_rng(number)
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH]
    picture = np.tile(np.array(BACKGROUND, float), (HEIGHT, WIDTH, 1))
    shapes = int(chance.integers(3, ACROSS * DOWN + 1))
    for cell in chance.choice(ACROSS * DOWN, shapes, replace=False):
        middle = (cell // ACROSS + 0.5) * HEIGHT / DOWN, (cell % ACROSS + 0.5) * WIDTH / ACROSS
        y, x = (down - middle[0] + chance.uniform(-8, 8)), (across - middle[1] + chance.uniform(-8, 8))
        size = chance.uniform(14, 26)
        outlines = [
            x**2 + y**2 < size**2,
            np.maximum(abs(x), abs(y)) < size * 0.85,
            (y < size * 0.7) & (y > 2 * abs(x) - size),
        ]
        picture[outlines[chance.integers(len(outlines))]] = COLOURS[chance.integers(len(COLOURS))]
    light = 1 + 0.12 * (across / WIDTH - down / HEIGHT)[..., None]  # brighter on one side
    noise = chance.normal(0, 9, picture.shape)
    return np.clip(picture * light + noise, 0, 255).astype(np.uint8), shapes


def with_masks(picture: Picture, labels: NDArray[np.intp]) -> Picture:
    """The picture in grey, each segment in a colour of its own with a white edge."""
    grey = picture.mean(axis=2, keepdims=True) * 0.45
    drawn = np.repeat(grey, 3, axis=2)
    hues = np.arange(labels.max() + 1)[:, None] * 0.618 + np.array([0, 1 / 3, 2 / 3])
    drawn[labels > 0] += 140 * (0.5 + 0.5 * np.cos(2 * np.pi * hues))[labels[labels > 0]]
    edge = np.zeros(labels.shape, bool)
    edge[1:] |= labels[1:] != labels[:-1]
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    drawn[edge] = 255
    return np.clip(drawn, 0, 255).astype(np.uint8)


def side_by_side(pictures: Sequence[Picture], across: int) -> Picture:
    """All pictures (of one size) in rows of so many."""
    blank = np.full_like(pictures[0], 255)
    filled = [*pictures, *[blank] * (-len(pictures) % across)]
    rows = [np.concatenate(filled[first : first + across], axis=1) for first in range(0, len(filled), across)]
    return np.concatenate(rows)


def png(picture: Picture) -> bytes:
    """The picture as a PNG file."""
    height, width, _ = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(lines.tobytes())
    return _SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def read_png(data: bytes) -> Picture:
    """The picture in a PNG file: 8 bits, grey or in colour, not interlaced; transparency is dropped."""
    try:
        return _read_png(data)
    except (struct.error, zlib.error, KeyError, IndexError) as error:
        raise NotAPicture(f"a broken PNG file: {error}") from None


def _read_png(data: bytes) -> Picture:
    if not data.startswith(_SIGNATURE):
        raise NotAPicture("not a PNG file")
    position, parts, header = len(_SIGNATURE), [], b""
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        content = data[position + 8 : position + 8 + length]
        if zlib.crc32(kind + content) != struct.unpack_from(">I", data, position + 8 + length)[0]:
            raise NotAPicture("a broken PNG file: a checksum does not fit")
        header = content if kind == b"IHDR" else header
        if kind == b"IDAT":
            parts.append(content)
        position += 12 + length
    width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colours not in _CHANNELS or interlaced:
        raise NotAPicture("only PNG files with 8 bits, grey or in colour, without palette or interlacing")
    if not 0 < width <= LARGEST_SIDE or not 0 < height <= LARGEST_SIDE:
        raise NotAPicture(f"a picture of {width} x {height} is too large")
    step = _CHANNELS[colours]
    expected = height * (1 + width * step)
    # Bounded: some kilobytes of PNG could unpack to gigabytes.
    raw = zlib.decompressobj().decompress(b"".join(parts), expected + 1)
    if len(raw) != expected:
        raise NotAPicture("a broken PNG file: it has too many pixels, or too few")
    lines = np.frombuffer(raw, np.uint8).reshape(height, -1)
    pixels = np.zeros((height, width, step), np.uint8)
    above = np.zeros((width, step), np.uint8)
    for number, line in enumerate(lines):
        above = pixels[number] = _unfiltered(int(line[0]), line[1:].reshape(width, step), above)
    return np.repeat(pixels[..., :1], 3, axis=2) if step == 1 else pixels[..., :3].copy()


def _unfiltered(kind: int, line: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A line of pixels from what PNG stores: the difference to the left, to the line above, or to both."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    if kind not in (3, 4):
        raise NotAPicture(f"a broken PNG file: it has no filter {kind}")
    out = np.zeros(line.shape, np.int64)
    left = corner = np.zeros(line.shape[1], np.int64)
    for place, (value, up) in enumerate(zip(line.astype(np.int64), above.astype(np.int64), strict=True)):
        if kind == 3:
            guess = (left + up) // 2
        else:
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            guess = np.where(
                (to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner)
            )
        left, corner = (value + guess) % 256, up
        out[place] = left
    return out.astype(np.uint8)
