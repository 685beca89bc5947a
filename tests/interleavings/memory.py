"""Memory that ranks share, as x86 processors show it to them: total store order.

Each rank has a buffer of its stores, first in, first out. The rank itself sees them at once, the other
ranks when they leave the buffer. An atomic instruction empties it (Owens, Sarkar and Sewell, "A better
x86 memory model: x86-TSO", 2009). Every load and store is a point at which another rank may go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

WORD = 8


class Memory:
    """The store buffers of all ranks."""

    def __init__(self, n_ranks: int, point: Callable[[], None]) -> None:
        """``point()`` is called before each access."""
        self.point = point
        self.n_stores = 0
        self._buffers: list[deque[tuple[int, Segment, int, bytes]]] = [
            deque() for _ in range(n_ranks)
        ]

    def store(self, segment: Segment, at: int, data: bytes) -> None:
        """Store ``data`` for the owner of ``segment``, and into its buffer."""
        segment.own[at : at + len(data)] = data
        self.n_stores += 1
        self._buffers[segment.owner].append((self.n_stores, segment, at, data))

    def undelivered(self) -> list[int]:
        """Return the ranks whose buffers hold stores."""
        return [rank for rank, buffer in enumerate(self._buffers) if buffer]

    def deliver(self, rank: int, most: int = 1) -> None:
        """Let the other ranks see the oldest stores of ``rank``, ``most`` at most."""
        buffer = self._buffers[rank]
        for _ in range(min(most, len(buffer))):
            _, segment, at, data = buffer.popleft()
            segment.visible[at : at + len(data)] = data

    def has_delivered(self, number: int) -> bool:
        """Return whether all ranks see the first ``number`` stores."""
        return all(not buffer or buffer[0][0] > number for buffer in self._buffers)

    def settle(self, rank: int) -> None:
        """Empty the buffer of ``rank``, by an atomic instruction or a call of the system."""
        self.point()
        self.deliver(rank, len(self._buffers[rank]))


class Fence:
    """A lock that only one rank takes: what remains is its atomic instruction."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self._memory = memory
        self._rank = rank

    def __enter__(self) -> None:
        self._memory.settle(self._rank)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class Bytes:
    """A `memoryview` of bytes that belong to one rank alone, as far as aiodist uses one."""

    def __init__(self, data: bytearray, start: int = 0, stop: int | None = None) -> None:
        self.start = start
        self.stop = len(data) if stop is None else stop
        self._data = data

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        return len(self)

    def __getitem__(self, part: slice) -> Self:
        start, stop, _ = part.indices(len(self))
        return self._part(self.start + start, self.start + max(start, stop))

    def __setitem__(self, part: slice, data: Bytes | memoryview | bytes) -> None:
        target, content = self[part], bytes(data)
        if len(target) != len(content):
            raise RuntimeError(f"{len(content)} bytes for {len(target)}")
        target.write(content)

    def __bytes__(self) -> bytes:
        return bytes(self._data[self.start : self.stop])

    def write(self, data: bytes) -> None:
        """Overwrite all of it."""
        self._data[self.start : self.stop] = data

    def release(self) -> None:
        """Do nothing: no memory is mapped."""

    def _part(self, start: int, stop: int) -> Self:
        return type(self)(self._data, start, stop)


class Segment:
    """Memory of which only the ``owner`` writes: as that rank sees it, and as the others do."""

    def __init__(self, memory: Memory, owner: int, nbytes: int) -> None:
        self.memory = memory
        self.owner = owner
        self.own = bytearray(nbytes)
        self.visible = bytearray(nbytes)

    def seen_by(self, rank: int) -> SharedBytes:
        """Return all of it, as ``rank`` maps it."""
        data = self.own if rank == self.owner else self.visible
        return SharedBytes(data, 0, len(data), self)


class SharedBytes(Bytes):
    """Bytes of a `Segment`. A copy has two halves, between which another rank may go on."""

    def __init__(self, data: bytearray, start: int, stop: int, segment: Segment) -> None:
        super().__init__(data, start, stop)
        self._segment = segment

    def _part(self, start: int, stop: int) -> Self:
        return type(self)(self._data, start, stop, self._segment)

    def _halves(self) -> tuple[slice, slice]:
        middle = (self.start + self.stop) // 2
        return slice(self.start, middle), slice(middle, self.stop)

    def __bytes__(self) -> bytes:
        content = b""
        for half in self._halves():
            self._segment.memory.point()
            content += self._data[half]
        return content

    def write(self, data: bytes) -> None:
        segment = self._segment
        if self._data is not segment.own:
            raise RuntimeError("a rank writes to its own segment only")
        for half in self._halves():
            segment.memory.point()
            size = half.stop - half.start
            segment.memory.store(segment, half.start, data[:size])
            data = data[size:]

    def cast(self, kind: str) -> Words:
        """Return the same memory as words."""
        assert kind == "Q"
        return Words(self._data, self.start, len(self) // WORD, self._segment)


class Words:
    """Words of a `Segment`, each of which is loaded and stored at once."""

    def __init__(self, data: bytearray, start: int, count: int, segment: Segment) -> None:
        self._data = data
        self._start = start
        self._count = count
        self._segment = segment

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        self._segment.memory.point()
        at = self._start + number * WORD
        return int.from_bytes(self._data[at : at + WORD], "little")

    def __setitem__(self, number: int, value: int) -> None:
        segment = self._segment
        if self._data is not segment.own:
            raise RuntimeError("a rank writes to its own segment only")
        segment.memory.point()
        at = self._start + number * WORD
        segment.memory.store(segment, at, value.to_bytes(WORD, "little"))

    def release(self) -> None:
        """Do nothing: no memory is mapped."""
