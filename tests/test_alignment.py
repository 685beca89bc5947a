"""What is copied to shared memory, or out of it, is not copied where the processor is slow at it."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from aiodist.alignment import EVERY, SHORT
from aiodist.collectives.slot_blocks import starts_of
from aiodist.shm.shared_memory import SharedMemory
from tests.shm.test_segment import close, met
from tests.shm.test_shared_memory import share

PAGE = 4096
MIB = 1 << 20
USERS = {"pages": 0, "numpy": 16, "torch": 64}


@pytest.fixture
def memories() -> Iterator[list[SharedMemory]]:
    made = met(2, 32 * MIB)
    yield made
    close(made)


def is_slow(destination: int, source: int) -> bool:
    return 0 < (destination - source) % PAGE < 32


def suits(place: int, user: int) -> bool:
    """Whether both ways are quick between ``place`` and what begins at ``user``, and its rows."""
    rows = range(user, user + PAGE, EVERY)
    return not any(is_slow(row, place) or is_slow(place, row) for row in rows)


def place_of(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data) % PAGE


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries place them elsewhere"
)
@pytest.mark.parametrize(
    ("user", "address"),
    [
        ("numpy", "numpy.empty(64 << 20, numpy.uint8).ctypes.data"),
        ("torch", "torch.empty(64 << 20, dtype=torch.uint8).data_ptr()"),
    ],
)
def test_large_arrays_and_tensors_begin_where_alignment_expects(user: str, address: str) -> None:
    """In a process of their own: where much was freed before, they begin anywhere in that."""
    pytest.importorskip(user)
    command = [sys.executable, "-c", f"import {user}; print({address})"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(printed) % PAGE == USERS[user]


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_slots_and_chunks(memories: list[SharedMemory], user: int) -> None:
    for number in (1, 2):
        for area in share(memories, number)[0]:
            for memory in (*area.slots, *area.chunks):
                assert suits(place_of(memory), user)
                for ranks in (2, 3, 4, 8, 17, 64):
                    assert suits(place_of(memory[starts_of([1] * ranks)[0] :]), user)


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize("head", [1, 51, 64, 128, 129, 300])
def test_messages_in_rings(memories: list[SharedMemory], head: int, user: int) -> None:
    """All of a row of them, whichever follow each other."""
    out, into = memories[0].ring_writer_to(1), memories[1].ring_reader_from(0)
    assert out is not None
    assert into is not None
    for length in (SHORT + 1, 1, 10_000, SHORT, SHORT + 64):
        assert out.put(0, bytes(head), memoryview(bytes(length)), MIB)
        found = into.next_message(0)
        assert found is not None
        assert len(found) == head + length
        if length > SHORT:
            assert suits(place_of(found[head:]), user)
        into.advance()


def test_begins_suit_bytes_as_well(memories: list[SharedMemory]) -> None:
    """Pickled objects are sent so, 32 bytes behind the begin of what holds them."""
    area = share(memories, 1)[0][0]
    out, into = memories[0].ring_writer_to(1), memories[1].ring_reader_from(0)
    assert out is not None
    assert into is not None
    assert out.put(0, bytes(51), memoryview(bytes(SHORT + 1)), MIB)
    found = into.next_message(0)
    assert found is not None
    for memory in (found[51:], *area.slots, *area.chunks):
        assert not is_slow(place_of(memory), 48)
        assert not is_slow(48, place_of(memory))
