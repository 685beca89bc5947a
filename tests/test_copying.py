"""`copy` is an assignment, whatever the lengths."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from aiodist import copying
from aiodist.copying import AT_ONCE, copy

LENGTHS = [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 3 * AT_ONCE + 5]


@pytest.mark.parametrize("length", LENGTHS)
def test_all_is_copied_and_nothing_beside_it(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 255, length, np.uint8)
    around = np.full(length + 2, 255, np.uint8)
    copy(memoryview(around)[1:-1], memoryview(data))
    assert (around[1:-1] == data).all()
    assert (around[0], around[-1]) == (255, 255)


class Noted:
    """Memory of that length, which notes what is written at once."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.written: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __setitem__(self, place: slice, data: memoryview) -> None:
        assert len(range(*place.indices(self.length))) == len(data)
        self.written.append(len(data))


@pytest.mark.parametrize("length", LENGTHS)
def test_no_piece_is_longer_than_that(length: int) -> None:
    into = Noted(length)
    copy(into, memoryview(bytes(length)))  # type: ignore[arg-type]  # as much of it as is needed
    assert sum(into.written) == length
    assert max(into.written) <= AT_ONCE
    assert len(into.written) == max(-(-length // AT_ONCE), 1)


@pytest.mark.parametrize("more", [1, AT_ONCE])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_that_differ_are_refused(length: int, more: int) -> None:
    into, data = memoryview(bytearray(length)), memoryview(bytes(length + more))
    for one, other in ((into, data), (memoryview(bytearray(data)), memoryview(bytes(into)))):
        with pytest.raises(ValueError, match="different structures"):
            copy(one, other)


@pytest.mark.parametrize(
    ("cache", "piece"),
    [
        (512 << 10, 256 << 10),
        (1 << 20, 512 << 10),
        (1280 << 10, 640 << 10),
        (1001 << 10, 500 << 10),
    ],
)
def test_a_piece_is_half_of_the_second_level_cache(
    monkeypatch: pytest.MonkeyPatch, cache: int, piece: int
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sysconf", lambda name: cache)
    assert copying._half_a_cache() == piece


@pytest.mark.parametrize("answer", [0, -1, OSError(22, "Invalid argument"), ValueError("unknown")])
def test_a_piece_is_small_where_nothing_is_known_of_the_cache(
    monkeypatch: pytest.MonkeyPatch, answer: int | Exception
) -> None:
    def sysconf(name: int) -> int:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert copying._half_a_cache() == 256 << 10
