"""What the machine does with no library at all: numpy, memory that ranks map, flags that they poll.

No check of arguments, no event loop, no failure but a wait that lasts too long. So its times are no
library's to reach, and what it does not reach itself, Python on this machine does not.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.operations import Call
from benchmarks.pattern import Array
from benchmarks.peers.base import BlockingPeer, Interval, Place, UnsupportedError, clock

CHUNK = 1 << 16
"""Elements that are copied at once: 256 KiB, which a core's own cache holds twice."""
DEPTH = 4
"""Chunks of a rank that may be on their way."""
LIMIT = 60.0
"""Seconds that a rank waits for the other, before it says that none comes."""

_LINE = 64  # bytes of a cache line: each flag has one of its own
_POLLS = 200  # looks before the core is offered to somebody else at each
_YIELDS = 1000  # looks before it is given up for a while at each
_NAP = 50e-6
_ORDERED = frozenset({"x86_64", "AMD64"})  # stores become visible in their order

Take = tuple[Array, Array | None]
"""Where a chunk of the other rank's goes, and what it is added to on the way; None: nothing."""


class Floor(BlockingPeer):
    """Two ranks and a ring of chunks for each: copy in, set a flag; poll the other's, copy out.

    The flags count chunks: those that a rank has put up, and those it is done with.
    """

    name = "floor"

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit

    def open(self, place: Place) -> None:
        self._trouble = _trouble(place.ranks)
        if self._trouble:
            return
        memory = _map_together(place, 4 * _LINE + 2 * DEPTH * CHUNK * 4)
        self._flags = memory[: 4 * _LINE].cast("Q")
        chunks = np.frombuffer(memory[4 * _LINE :], np.float32).reshape(2, DEPTH, CHUNK)
        self._mine, self._other = chunks[place.rank], chunks[1 - place.rank]
        up, done = range(0, 16, 8), range(16, 32, 8)
        self._my_up, self._my_done = up[place.rank], done[place.rank]
        self._other_up, self._other_done = up[1 - place.rank], done[1 - place.rank]
        self._put_up = self._taken = 0

    def bind(self, call: Call) -> Callable[[], object]:
        if self._trouble:
            raise UnsupportedError(self._trouble)
        source, target = np.asarray(call.source), np.asarray(call.target)
        mine, other = _halves(source, call.rank)
        my_place, other_place = _halves(target, call.rank)
        match call.operation:
            case "all_reduce":
                return self._steps(puts=_cut(source), takes=_takes(source, source))
            case "broadcast" | "send_recv":
                there = self._steps(puts=_cut(source))
                here = self._steps(takes=_takes(target))
                if call.operation == "broadcast":
                    return there if call.rank == 0 else here
                back = self._steps(puts=_cut(target))
                return _after(there, here) if call.rank == 0 else _after(here, back)
            case "all_gather":
                local = list(zip(_cut(my_place), _cut(source), strict=True))
                return self._steps(_cut(source), local, _takes(other_place))
            case "reduce_scatter":
                return self._steps(puts=_cut(other), takes=_takes(target, mine))
            case "all_to_all":
                local = list(zip(_cut(my_place), _cut(mine), strict=True))
                return self._steps(_cut(other), local, _takes(other_place))
            case "barrier":
                return self.barrier
        raise UnsupportedError(f"no operation {call.operation}")

    def barrier(self) -> None:
        self._put_up += 1
        self._flags[self._my_up] = self._put_up
        self._wait(self._other_up, self._taken + 1)
        self._taken += 1
        self._flags[self._my_done] = self._taken

    def close(self) -> None:
        pass  # the memory ends with the last process that maps it

    def _steps(
        self,
        puts: Sequence[Array] = (),
        local: Sequence[tuple[Array, Array]] = (),
        takes: Sequence[Take] = (),
    ) -> Callable[[], None]:
        """Each chunk is put up before the one before it is taken, so both ranks work at once."""
        # Views are made now: a slice takes as long as adding some hundred elements.
        ours = [[slot[: len(part)] for slot in self._mine] for part in puts]
        theirs = [[slot[: len(out)] for slot in self._other] for out, _ in takes]

        def run() -> None:
            for step in range(max(len(puts), len(takes)) + 1):
                if step < len(puts):
                    self._put(puts[step], ours[step])
                if step < len(local):
                    np.copyto(*local[step])
                if 0 < step <= len(takes):
                    self._take(*takes[step - 1], theirs[step - 1])

        return run

    def _put(self, part: Array, slots: Sequence[Array]) -> None:
        number = self._put_up
        self._wait(self._other_done, number - DEPTH + 1)
        np.copyto(slots[number % DEPTH], part)
        self._put_up = number + 1
        self._flags[self._my_up] = number + 1

    def _take(self, out: Array, mine: Array | None, slots: Sequence[Array]) -> None:
        number = self._taken
        self._wait(self._other_up, number + 1)
        if mine is None:
            np.copyto(out, slots[number % DEPTH])
        else:
            np.add(mine, slots[number % DEPTH], out)
        self._taken = number + 1
        self._flags[self._my_done] = number + 1

    def _wait(self, flag: int, count: int) -> None:
        flags = self._flags
        if flags[flag] >= count:
            return
        for _ in range(_POLLS):
            if flags[flag] >= count:
                return
        looks = 0
        end = time.monotonic() + self._limit
        while flags[flag] < count:
            looks += 1
            if looks < _YIELDS:
                os.sched_yield()
                continue
            # Something else keeps the cores busy: one who yields to it waits for long.
            time.sleep(_NAP)
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: the other rank has not come in {self._limit:g} s")


class Shared(Floor):
    """All-reduce of tensors that lie in shared memory already: add a half, copy a half.

    No library is given such tensors. They are moved there and back while no time is taken.
    """

    name = "floor-shared"

    def open(self, place: Place) -> None:
        super().open(place)
        self._place = place
        self._maps = 0  # so far
        self._count = -1  # elements of what is mapped
        self._tensors_of: list[Array] = []

    def bind(self, call: Call) -> Callable[[], object]:
        if self._trouble:
            raise UnsupportedError(self._trouble)
        if call.operation != "all_reduce":
            raise UnsupportedError("all_reduce is all there is of it")
        mine, theirs = self._tensors(call)
        my_part, rest = _halves(mine, call.rank)
        their_part, their_rest = _halves(theirs, call.rank)

        def run() -> None:
            np.add(my_part, their_part, my_part)
            self.barrier()
            np.copyto(rest, their_rest)

        return run

    def turn(self, call: Call, numbers: range) -> list[Interval]:
        operation, tensor = self.bind(call), np.asarray(call.source)
        shared, _ = self._tensors(call)
        intervals = []
        for number in numbers:
            call.write(number)
            np.copyto(shared, tensor)
            self.barrier()
            start = clock()
            operation()
            end = clock()
            self.barrier()
            np.copyto(tensor, shared)
            call.check(number, self.name)
            intervals.append((start, end))
        self.barrier()
        return intervals

    def _tensors(self, call: Call) -> list[Array]:
        """This rank's and the other's, of the call's length."""
        count = call.case.count
        if count != self._count:
            self._maps += 1
            memory = _map_together(self._place, 2 * 4 * count, f"tensors {self._maps}")
            both = np.frombuffer(memory, np.float32)
            self._count, self._tensors_of = count, [both[:count], both[count:]]
        return self._tensors_of[:: -1 if call.rank else 1]


def _trouble(ranks: int) -> str:
    """Why there is no floor here; empty where there is one."""
    if ranks != 2:
        return "it is of two ranks"
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create"
    if platform.machine() not in _ORDERED:
        return f"stores may overtake each other on {platform.machine()}"
    return ""


def _map_together(place: Place, nbytes: int, key: str = "rings") -> memoryview:
    """Zeroed memory of rank 0's, without a name, mapped by both."""
    if place.rank == 0:
        fd = os.memfd_create("benchmarks", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        place.store.set(key, f"/proc/{os.getpid()}/fd/{fd}")
    else:
        fd = os.open(place.store.get(key).decode(), os.O_RDWR | os.O_CLOEXEC)
    memory = memoryview(mmap.mmap(fd, nbytes))
    place.store.set(f"{key}, mapped by {place.rank}", "")
    if place.rank == 0:
        place.store.get(f"{key}, mapped by 1")  # through the descriptor, which closes now
    os.close(fd)
    return memory


def _halves(array: Array, rank: int) -> tuple[Array, Array]:
    """(this rank's, the other's); of an odd length rank 1 has more."""
    half = len(array) // 2
    return (array[:half], array[half:]) if rank == 0 else (array[half:], array[:half])


def _cut(array: Array) -> list[Array]:
    return [array[start : start + CHUNK] for start in range(0, len(array), CHUNK)]


def _takes(array: Array, mine: Array | None = None) -> list[Take]:
    parts = _cut(array)
    return list(zip(parts, _cut(mine) if mine is not None else [None] * len(parts), strict=True))


def _after(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run
