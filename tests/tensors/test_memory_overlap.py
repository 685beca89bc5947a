"""Which stretches of memory share bytes."""

from __future__ import annotations

import pytest

from aiodist.tensors.memory_overlap import overlap, overlaps_others

MEMORY = memoryview(bytearray(32))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 8), (8, 16), False),
        ((8, 16), (0, 8), False),
        ((0, 9), (8, 16), True),
        ((8, 16), (0, 9), True),
        ((0, 32), (8, 9), True),
        ((8, 9), (0, 32), True),
        ((8, 8), (0, 32), False),
        ((0, 32), (8, 8), False),
    ],
)
def test_two_stretches(first: tuple[int, int], second: tuple[int, int], expected: bool) -> None:
    one, other = MEMORY[slice(*first)], MEMORY[slice(*second)]
    assert overlap(one, other) is expected
    assert overlap(one.toreadonly(), other.toreadonly()) is expected


@pytest.mark.parametrize(
    ("stretch", "expected"),
    [((8, 16), False), ((8, 15), True), ((9, 16), True), ((0, 8), True), ((16, 16), False)],
)
def test_a_stretch_may_be_exactly_the_own_block(stretch: tuple[int, int], expected: bool) -> None:
    blocks = [MEMORY[start : start + 8] for start in range(0, 24, 8)]
    assert overlaps_others(MEMORY[slice(*stretch)], blocks, 1) is expected


def test_the_own_block_counts_where_it_stands_twice() -> None:
    assert overlaps_others(MEMORY[:8], [MEMORY[:8], MEMORY[:8]], 0)
    assert not overlaps_others(MEMORY[24:], [MEMORY[:8], MEMORY[:8]], 0)
