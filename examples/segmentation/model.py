"""The model: finds the shapes in a picture by colour (k-means), and parts them by connected regions."""

from __future__ import annotations

import logging
import os
import time

import numpy as np
from examples.segmentation.pictures import Picture, scene
from numpy.typing import NDArray

LOADING_SECONDS = 1.0
SMALLEST = 60  # pixels; what is smaller is noise
TRAINING = range(9_000, 9_004)  # numbers of pictures that no job has

log = logging.getLogger("segmentation.model")
Labels = NDArray[np.intp]


class Model:
    """Colours learnt from some pictures; what is nearest to none but the background's is a segment."""

    def __init__(self) -> None:
        pixels = np.concatenate([scene(number)[0][::3, ::3].reshape(-1, 3) for number in TRAINING])
        self._colours = _means(pixels.astype(np.float32), count=6)

    def segment(self, picture: Picture) -> Labels:
        """The number of its segment for every pixel, from 1 on; 0 is the background."""
        height, width, _ = picture.shape
        classes = _nearest(picture.reshape(-1, 3).astype(np.float32), self._colours).reshape(height, width)
        background = np.bincount(classes.ravel()).argmax()
        regions = _regions(classes, classes != background)
        names, places, sizes = np.unique(regions, return_inverse=True, return_counts=True)
        kept = (names > 0) & (sizes >= SMALLEST)
        return np.where(kept, np.cumsum(kept), 0)[places].reshape(height, width)


def load_model() -> Model:
    """Load it, which takes a while: each process does it once."""
    began = time.monotonic()
    time.sleep(LOADING_SECONDS)  # stands for reading gigabytes of weights
    model = Model()
    log.info("model loaded by process %d in %.1f s", os.getpid(), time.monotonic() - began)
    return model


def _means(pixels: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """k-means: the first colours are far from each other, then each moves to the middle of its pixels."""
    colours = pixels.mean(axis=0, keepdims=True)
    while len(colours) < count:
        distances = ((pixels[:, None] - colours) ** 2).sum(axis=2).min(axis=1)
        colours = np.concatenate([colours, pixels[distances.argmax()][None]])
    for _ in range(10):
        nearest = _nearest(pixels, colours)
        groups = [pixels[nearest == one] for one in range(len(colours))]
        colours = np.stack([group.mean(axis=0) for group in groups if len(group)])
    return colours


def _nearest(pixels: NDArray[np.float32], colours: NDArray[np.float32]) -> Labels:
    # |p - c|^2 without |p|^2, which is the same for all colours.
    return np.argmin((colours**2).sum(axis=1) - 2 * pixels @ colours.T, axis=1)


def _regions(classes: Labels, wanted: NDArray[np.bool_]) -> Labels:
    """One number for all pixels that are connected and of one class; 0 for those that are not wanted."""
    numbers = np.where(wanted, np.arange(1, classes.size + 1).reshape(classes.shape), 0)
    across = wanted[:, 1:] & wanted[:, :-1] & (classes[:, 1:] == classes[:, :-1])
    down = wanted[1:] & wanted[:-1] & (classes[1:] == classes[:-1])
    while True:  # the largest number of a region spreads, one pixel at a time
        spread = numbers.copy()
        for joined, one, other in (
            (across, np.s_[:, 1:], np.s_[:, :-1]),
            (across, np.s_[:, :-1], np.s_[:, 1:]),
            (down, np.s_[1:], np.s_[:-1]),
            (down, np.s_[:-1], np.s_[1:]),
        ):
            spread[one] = np.where(joined, np.maximum(spread[one], spread[other]), spread[one])
        if np.array_equal(spread, numbers):
            return numbers
        numbers = spread
