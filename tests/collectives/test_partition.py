"""Cutting data, slots of scratch memory, and the binomial tree."""

from __future__ import annotations

import pytest

from aiodist.collectives.fold import Fold
from aiodist.collectives.partition import cut, offsets_of, segments_of, slots
from aiodist.collectives.tree import children, parent, subtree_end


@pytest.mark.parametrize("itemsize", [1, 4, 16])
@pytest.mark.parametrize("elements", [0, 1, 6, 7, 8, 100])
def test_cut_keeps_elements_whole_and_blocks_even(elements, itemsize):
    data = memoryview(bytearray(range(256)) * 7)[: elements * itemsize]
    for parts in (1, 2, 3, 7, 8):
        views = cut(data, itemsize, parts)
        assert len(views) == parts
        assert b"".join(views) == data
        assert all(len(view) % itemsize == 0 for view in views)
        assert len(views[0]) - len(views[-1]) in (0, itemsize)
        assert sorted(map(len, views), reverse=True) == list(map(len, views))


def test_segments_and_offsets():
    assert [segments_of(n, 10) for n in (0, 1, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]
    assert offsets_of([3, 0, 2]) == [0, 3, 3, 5]


def test_slots_are_apart_and_aligned():
    memory = memoryview(bytearray(1000))
    asked = []

    def scratch(nbytes):
        asked.append(nbytes)
        return memory[:nbytes]

    for number, slot in enumerate(slots(scratch, 3, 70)):
        slot[:] = bytes([number + 1]) * 70
    assert asked == [3 * 128]
    assert [memory[i * 128 : i * 128 + 70] == bytes([i + 1]) * 70 for i in range(3)] == [True] * 3
    assert slots(scratch, 0, 70) == []


@pytest.mark.parametrize("size", range(1, 34))
def test_the_tree_reaches_every_place_once_and_subtrees_are_runs(size):
    def under(place):
        found = [place]
        for child in children(place, size):
            assert parent(child) == place
            found += under(child)
        return found

    for place in range(size):
        assert sorted(under(place)) == list(range(place, subtree_end(place, size)))
    assert under(0).count(0) == 1
    assert sorted(under(0)) == list(range(size))
    assert len(children(0, size)) == (size - 1).bit_length()


@pytest.mark.parametrize("size", range(1, 34))
def test_folding_leaves_a_power_of_two_in_the_order_of_ranks(size):
    folds = [Fold(rank, size) for rank in range(size)]
    players = [rank for rank, fold in enumerate(folds) if fold.place >= 0]
    assert [folds[rank].place for rank in players] == list(range(folds[0].places))
    assert [folds[0].rank_at(place) for place in range(folds[0].places)] == players
    assert folds[0].places <= size < 2 * folds[0].places
