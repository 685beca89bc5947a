"""What buffers hold before a call and must hold after it: small integers, so that sums are exact."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

CHUNK = 1 << 16
_PERIOD = 251  # prime: a part that is off by any power of two shows
_ADDENDS = 8191  # prime, and float32 holds integers up to 2**24
_STEP = 7  # between chunks, so that exchanged chunks show


class WrongResultError(AssertionError):
    """A peer left something else in the output than the operation is defined to leave."""


@dataclass(frozen=True)
class Segment:
    """Elements ``start`` to ``start + count``; the j-th holds ``weight * position(j) + constant``."""

    start: int
    count: int
    weight: int
    constant: int


def in_usual_pages(count: int) -> Array:
    """Memory as a tensor of torch's has it, on which most peers are measured.

    numpy by itself asks for huge pages from 4 MiB on, which are faster to copy.
    """
    pages = mmap.mmap(-1, max(4 * count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.float32, count)


def mark(sender: int, part: int, turn: int) -> int:
    """The constant that tells who sent an element, in which part of its input, in which turn."""
    return 4096 * sender + 64 * part + turn % 61


def addend(sender: int, part: int, turn: int) -> int:
    """The same for what is summed over the senders: small, so that the sum of 1900 of them is exact."""
    return mark(sender, part, turn) % _ADDENDS


def fill(array: Array, segments: tuple[Segment, ...]) -> None:
    """Write all of ``segments``."""
    for segment in segments:
        for start, count, constant in _chunks(segment):
            into = array[start : start + count]
            if segment.weight == 1:
                np.add(_base()[:count], np.float32(constant), out=into)
            else:
                _expected(segment.weight, constant, into)


def check(array: Array, segments: tuple[Segment, ...], who: str) -> None:
    """Raise WrongResultError, naming ``who``, unless ``array`` holds ``segments``."""
    expected = np.empty(CHUNK, np.float32)
    for segment in segments:
        for start, count, constant in _chunks(segment):
            right = _expected(segment.weight, constant, expected[:count])
            found = array[start : start + count]
            if not np.array_equal(found, right):
                place = int(np.flatnonzero(found != right)[0])
                raise WrongResultError(
                    f"{who}: element {start + place} is {found[place]} and must be {right[place]}"
                )


def _chunks(segment: Segment) -> list[tuple[int, int, int]]:
    """(start, elements, constant) of each chunk."""
    return [
        (
            segment.start + done,
            min(CHUNK, segment.count - done),
            segment.constant + segment.weight * _STEP * (done // CHUNK),
        )
        for done in range(0, segment.count, CHUNK)
    ]


def _expected(weight: int, constant: int, out: Array) -> Array:
    np.multiply(_base()[: len(out)], np.float32(weight), out=out)
    out += np.float32(constant)
    return out


@cache
def _base() -> Array:
    return (np.arange(CHUNK) % _PERIOD).astype(np.float32)
