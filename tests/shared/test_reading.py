"""Reading the memory of another process, and seeing that it cannot be read."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.shared.memory import SharedMemory
from aiodist.shared.reading import NOTHING, Reader, Window, address_of
from aiodist.shared.segment import Segment

MIB = 1 << 20

SHOWING = """
import numpy as np
data = np.arange(1 << 18, dtype=np.uint32)
print(data.ctypes.data, flush=True)
input()
"""


@pytest.fixture
def other() -> Iterator[tuple[int, int]]:
    """A process that has the numbers from 0 at an address: its id, and the address."""
    child = subprocess.Popen(
        [sys.executable, "-c", SHOWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        yield child.pid, int(child.stdout.readline())
    finally:
        child.communicate(b"\n")
    assert child.returncode == 0


def test_what_another_process_has(other: tuple[int, int]) -> None:
    pid, start = other
    into = bytearray(MIB - 12)
    Reader().read(pid, start + 8, memoryview(into))
    numbers = memoryview(into).cast("I")
    assert (numbers[0], numbers[-1], len(numbers)) == (2, (1 << 18) - 2, (1 << 18) - 3)


def test_a_process_that_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError):
        Reader().read(child.pid, 4096, memoryview(bytearray(8)))


def test_what_is_no_memory_at_its_end() -> None:
    """Two pages of which only the first can be read: nothing is, or it is said."""
    page = mmap.PAGESIZE
    whole = mmap.mmap(-1, 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(whole)
    start = address_of(view)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + page), page, mmap.PROT_READ) == 0
    reader = Reader()
    assert reader.can_be_read(view)
    assert libc.mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    assert not reader.can_be_read(view)
    assert reader.can_be_read(view[:page])
    with pytest.raises(OSError, match="Bad address"):
        reader.read(os.getpid(), start, memoryview(bytearray(2 * page)))
    window = Window(reader, [os.getpid()])
    assert window.address(view) == 0
    assert window.address(view[:page]) == start
    assert window.address(view[:0]) == NOTHING
    view.release()
    whole.close()


@pytest.fixture
def memories() -> Iterator[list[SharedMemory]]:
    """Of three ranks; the last one was told to read nobody."""
    memories = [SharedMemory.create(rank, MIB, single_copy=rank < 2) for rank in range(3)]
    descriptions = {memory.rank: memory.description for memory in memories}
    for memory in memories:
        memory.meet(descriptions)
    yield memories
    for memory in memories:
        memory.close()


def test_a_window_is_for_those_who_may_read(memories: list[SharedMemory]) -> None:
    here, _, told_not_to = memories
    window = here.window([0, 1, 2])
    assert window is not None
    assert told_not_to.window([0, 1, 2]) is None
    data = memoryview(b"a tensor")
    into = bytearray(len(data))
    window.read(1, window.address(data), memoryview(into))
    assert into == data


def test_a_process_that_is_another_one_than_was_meant(
    memories: list[SharedMemory], other: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be read, and has no such nonce."""
    monkeypatch.setattr(Segment, "pid", other[0])
    assert memories[0].window([0, 1]) is None
