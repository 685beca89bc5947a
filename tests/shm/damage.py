"""What a rank that lies or fails can do to the memory that others read."""

from __future__ import annotations

from aiodist.shm.message_ring import RingWriter
from aiodist.shm.segment import Segment
from aiodist.shm.shared_memory import SharedMemory


def ring_bytes(memory: SharedMemory, ring: RingWriter) -> memoryview:
    """Return the bytes of ``ring``, which stands in the own segment of ``memory``."""
    view = Segment.open(memory.description).view
    return view[ring.start : ring.start + ring.nbytes]
