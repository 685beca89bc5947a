"""Fake time and small sizes for ranks whose order is drawn."""

from __future__ import annotations

import struct

import pytest

from aiodist.backends import plans
from aiodist.collectives import broadcast_shared, reduce_slots, slot_blocks
from aiodist.groups import shm_collective, shm_communicator, shm_opening
from aiodist.p2p import shm_progress, shm_receiver, spin_policy
from tests.interleavings.clock import Clock
from tests.interleavings.memory import Bytes
from tests.interleavings.operations import SHORT


class Table:
    """`struct.Struct` of some words, on modelled memory."""

    def __init__(self, size: int) -> None:
        self._words = struct.Struct(f"<{size}Q")
        self.size = self._words.size

    def pack_into(self, slot: Bytes, start: int, *lengths: int) -> None:
        slot[start : start + self.size] = self._words.pack(*lengths)

    def unpack_from(self, slot: Bytes) -> tuple[int, ...]:
        return self._words.unpack(bytes(slot[: self.size]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The only time that the product has."""
    clock = Clock()
    for module in (
        *(shm_collective, shm_communicator, shm_opening),
        *(shm_progress, shm_receiver, spin_policy),
    ):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(spin_policy, "yield_core", lambda: None)
    monkeypatch.setattr(spin_policy, "sleep", lambda seconds: None)
    return clock


@pytest.fixture
def small_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few bytes go in pieces, and on modelled memory."""
    monkeypatch.setattr(broadcast_shared, "PIECE_BYTES", SHORT)
    monkeypatch.setattr(slot_blocks, "_table", Table)
    monkeypatch.setattr(reduce_slots, "memoryview", Bytes, raising=False)
    monkeypatch.setattr(plans, "overlaps_others", lambda view, blocks, rank: False)
