"""Write a short message into a message ring between two ranks of one host, and read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aiodist.shm.message_ring import RingReader, RingWriter
from aiodist.shm.shared_memory import SharedMemory

HEAD = bytes(54)  # of a frame with the description of a tensor of one dimension


@pytest.fixture
def ends() -> Iterator[tuple[RingWriter, RingReader]]:
    """Yield the writer and the reader of one ring, in two segments of this process."""
    memories = [SharedMemory.create(rank, 32 << 20) for rank in range(2)]
    for memory in memories:
        memory.meet({other.rank: other.description for other in memories})
    out, into = memories[0].ring_writer_to(1), memories[1].ring_reader_from(0)
    assert out is not None
    assert into is not None
    yield out, into
    for memory in memories:
        memory.close()


@pytest.mark.parametrize("nbytes", [4, 4096, 65536])
def bench_put_and_take(benchmark: Any, ends: tuple[RingWriter, RingReader], nbytes: int) -> None:
    """Both copies and the words beside them, by one core."""
    out, into = ends
    data, place = memoryview(bytes(nbytes)), memoryview(bytearray(nbytes))

    def pass_on() -> None:
        assert out.put(0, HEAD, data, 1 << 20)
        assert not out.must_wake()
        found = into.next_message(0)
        assert found is not None
        place[:] = found[len(HEAD) :]
        into.take(*into.advance())

    benchmark(pass_on)
