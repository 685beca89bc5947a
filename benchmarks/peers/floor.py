"""A lower bound without any library: numpy, memory that ranks map, flags that they poll.

It has no check of arguments, no event loop, and no failure but a wait that lasts too long. So no
library reaches its times, and what it does not reach itself, Python on this machine does not reach.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import BlockingPeer, Place, UnsupportedError
from aiodist.copying import AT_ONCE

PART = 1 << 16
"""Elements of a rank's part of a chunk, which it publishes as a whole: 256 KiB.

With two ranks, 100 MiB took the least time in chunks of 256 to 512 KiB, out of 128 KiB to 1 MiB. With
four ranks on two cores chunks of 1 MiB did, since the ranks then yield to each other less often.
"""
DEPTH = 4
"""Chunks of a rank that may be on their way."""
EXCHANGED = 1 << 12
"""Elements that more than two ranks add up each for itself; of more, each rank adds up a part."""
LINK = 1 << 17
"""Elements of a chunk that goes along a chain of ranks: 512 KiB, which took less time than 1 MiB."""
CHAINED = 1 << 20
"""More elements than these go along a chain where three to `ROW` ranks share cores: with four ranks on
two cores that is less work than to add up a part each, and takes less time from 8 MiB on."""
ROW = 6
"""Ranks of a chain at most: eight wait for each other longer than it saves."""
LIMIT = 60.0
"""Seconds that a rank waits for another, before it says that none comes."""

_LINE = 64  # bytes of a cache line: each flag has one of its own
_POLLS = 2000  # polls before the rank yields its core at each poll
_YIELDS = 3  # polls that yield the core, before the rank sleeps between polls
_NAP = 50e-6
_ORDERED = frozenset({"x86_64", "AMD64"})  # stores become visible in their order


@dataclass(frozen=True)
class Put:
    """A chunk of this rank's, for all others: copies into it, and then from here to here."""

    copies: list[tuple[list[Array], Array]]
    """The memory that each place in the ring has for it, and what is copied."""
    local: list[tuple[Array, Array]]


@dataclass(frozen=True)
class Take:
    """The next chunk of rank ``other``'s, or a part of it."""

    other: int
    places: list[Array]
    out: Array
    mine: Array | None = None
    """What it is added to on its way to ``out``."""


@dataclass(frozen=True)
class Pass:
    """The next chunk of rank ``other``'s and ``mine``, added up into the next one of this rank's."""

    other: int
    places: list[Array]
    mine: Array
    into: list[Array]


@dataclass(frozen=True)
class Skip:
    """The next chunk of rank ``other``'s is not for this rank."""

    other: int


Step = Put | Take | Pass | Skip
Program = Iterable[Step]


class Floor(BlockingPeer):
    """A ring of chunks for each rank: copy in, set a flag; poll the others', copy out or add.

    Flags count chunks: those that a rank has put up, and those of each other's that it is done
    with. What is put up is for all, so every rank takes or skips every chunk of a collective.
    """

    name = "floor"

    def __init__(self, limit: float = LIMIT, ranks_here: int = 0) -> None:
        """``ranks_here``: how many share the machine's cores, where more do than meet here."""
        self._limit = limit
        self._ranks_here = ranks_here

    def open(self, place: Place) -> None:
        rank, ranks = place.rank, place.ranks
        self._rank = rank
        self._others = [*range(rank + 1, ranks), *range(rank)]
        self._chunk = ranks * PART
        self._trouble = _trouble()
        if self._trouble:
            return
        flags = ranks * (ranks + 1) * _LINE
        memory = map_together(place, flags + ranks * DEPTH * self._chunk * 4, "rings")
        self._flags = memory[:flags].cast("Q")
        self._rings = np.frombuffer(memory[flags:], np.float32).reshape(ranks, DEPTH, -1)
        words = _LINE // 8
        self._up = range(0, ranks * words, words)
        self._done_with_mine = [(ranks * (1 + rank) + other) * words for other in self._others]
        self._done = [(ranks * (1 + other) + rank) * words for other in range(ranks)]
        self._publish, self._taken = 0, [0] * ranks
        # Where ranks outnumber cores, the one that is waited for may need this one's.
        oversubscribed = max(ranks, self._ranks_here) > (os.cpu_count() or 1)
        self._polls = 0 if oversubscribed else _POLLS
        self._chains = oversubscribed and ranks <= ROW

    def check(self) -> None:
        """Raise UnsupportedError where it cannot run."""
        if self._trouble:
            raise UnsupportedError(self._trouble)

    def bind(self, call: Call) -> Callable[[], object]:
        self.check()
        if call.operation == "barrier":
            return self.barrier
        return self.bind_arrays(call.operation, np.asarray(call.source), np.asarray(call.target))

    def bind_arrays(self, operation: str, source: Array, target: Array) -> Callable[[], None]:
        """An operation on arrays of float32, ready to run again and again."""
        # Views are made now: a slice takes as long as adding some hundred elements.
        program: list[Step] = list(self._program(operation, source, target))

        def run() -> None:
            for step in program:
                if isinstance(step, Put):
                    self._put_now(step)
                elif isinstance(step, Take):
                    self._take_now(step)
                elif isinstance(step, Pass):
                    self._pass_now(step)
                else:
                    self._release(step.other)

        return run

    def barrier(self) -> None:
        self._post()
        for other in self._others:
            self._wait(self._up[other], self._taken[other] + 1)
            self._release(other)

    def close(self) -> None:
        pass  # the memory ends with the last process that maps it

    def _program(self, operation: str, source: Array, target: Array) -> Program:
        rank, others, part = self._rank, self._others, PART
        ranks = 1 + len(others)
        match operation:
            case "all_reduce" if ranks == 2 or len(source) <= EXCHANGED:
                parts = self._cut(source)
                puts = [self._put({0: each}) for each in parts]
                takes = [[self._take(o, 0, each, each) for o in others] for each in parts]
                return _ahead(puts, takes)
            case "all_reduce" if self._chains and len(source) > CHAINED:
                return self._chain(_cut(source, min(LINK, self._chunk)))
            case "all_reduce":
                return self._stripes(self._cut(source))
            case "broadcast":
                return self._send(source) if rank == 0 else self._receive(source, 0)
            case "send_recv":
                if rank == 0:
                    return [*self._send(source), *self._receive(target, 1)]
                return [*self._receive(target, 0), *self._send(target)]
            case "all_gather":
                into = [self._cut(each) for each in target.reshape(ranks, -1)]
                puts = [
                    self._put({0: each}, (own, each))
                    for each, own in zip(self._cut(source), into[rank], strict=True)
                ]
                steps = range(len(puts))
                return _ahead(puts, [[self._take(o, 0, into[o][s]) for o in others] for s in steps])
            case "reduce_scatter":
                rows, out = (
                    [_cut(row, part) for row in source.reshape(ranks, -1)],
                    _cut(target, part),
                )
                return _ahead(
                    [self._put({o * part: rows[o][s] for o in others}) for s in range(len(out))],
                    [
                        [
                            self._take(o, rank * part, each, each if o != others[0] else own)
                            for o in others
                        ]
                        for each, own in zip(out, rows[rank], strict=True)
                    ],
                )
            case "all_to_all":
                rows, into = (
                    [_cut(row, part) for row in each.reshape(ranks, -1)]
                    for each in (source, target)
                )
                steps = range(len(into[rank]))
                return _ahead(
                    [
                        self._put(
                            {o * part: rows[o][s] for o in others}, (into[rank][s], rows[rank][s])
                        )
                        for s in steps
                    ],
                    [[self._take(o, rank * part, into[o][s]) for o in others] for s in steps],
                )
        raise UnsupportedError(f"no operation {operation}")

    def _stripes(self, chunks: Sequence[Array]) -> Iterator[Put | Take]:
        """Yield steps in which a rank adds up one stripe of each chunk and copies the other stripes."""
        rank, others, part = self._rank, self._others, PART
        ranks = 1 + len(others)
        stripes = [_cut(each, -(-len(each) // ranks), ranks) for each in chunks]
        raw = [self._put({o * part: each[o] for o in others}) for each in stripes]
        yield raw[0]
        for step in range(len(stripes) + 1):
            if step + 1 < len(stripes):
                yield raw[step + 1]
            if step < len(stripes):
                mine = stripes[step][rank]
                yield from (self._take(o, rank * part, mine, mine) for o in others)
                yield self._put({0: mine})
            if step:
                yield from (self._take(o, 0, stripes[step - 1][o]) for o in others)

    def _chain(self, chunks: Sequence[Array]) -> Iterator[Step]:
        """Rank 0 puts a chunk up, each next one the sum of that and its own; all take the last one's."""
        rank, last = self._rank, len(self._others)
        ahead = min(2, last - rank)
        for step in range(len(chunks) + ahead):
            if step < len(chunks):
                mine = chunks[step]
                for other in self._others:
                    if other not in (rank - 1, last):
                        yield Skip(other)
                if rank == last:
                    yield self._take(rank - 1, 0, mine, mine)
                if rank in (0, last):
                    yield self._put({0: mine})
                else:
                    theirs, own = (
                        [chunk[: len(mine)] for chunk in self._rings[each]]
                        for each in (rank - 1, rank)
                    )
                    yield Pass(rank - 1, theirs, mine, own)
            if step >= ahead and rank != last:
                yield self._take(last, 0, chunks[step - ahead])

    def _cut(self, array: Array) -> list[Array]:
        return _cut(array, self._chunk)

    def _send(self, array: Array) -> list[Put]:
        return [self._put({0: each}) for each in self._cut(array)]

    def _receive(self, array: Array, other: int) -> list[Take]:
        return [self._take(other, 0, each) for each in self._cut(array)]

    def _put(self, arrays: dict[int, Array], *local: tuple[Array, Array]) -> Put:
        """``arrays`` by their first element's place in the chunk."""
        ring = self._rings[self._rank]
        copies = [
            ([chunk[start : start + len(array)] for chunk in ring], array)
            for start, array in arrays.items()
        ]
        return Put(copies, list(local))

    def _take(self, other: int, start: int, out: Array, mine: Array | None = None) -> Take:
        places = [chunk[start : start + len(out)] for chunk in self._rings[other]]
        return Take(other, places, out, mine)

    def _put_now(self, step: Put) -> None:
        place = self._free_place()
        for places, array in step.copies:
            copy_array(places[place], array)
        self._post()
        for out, array in step.local:
            copy_array(out, array)

    def _free_place(self) -> int:
        for flag in self._done_with_mine:
            self._wait(flag, self._publish - DEPTH + 1)
        return self._publish % DEPTH

    def _post(self) -> None:
        self._publish += 1
        self._flags[self._up[self._rank]] = self._publish

    def _pass_now(self, step: Pass) -> None:
        other = step.other
        number = self._taken[other]
        self._wait(self._up[other], number + 1)
        np.add(step.mine, step.places[number % DEPTH], step.into[self._free_place()])
        self._post()
        self._release(other)

    def _take_now(self, step: Take) -> None:
        other = step.other
        number = self._taken[other]
        self._wait(self._up[other], number + 1)
        theirs = step.places[number % DEPTH]
        if step.mine is None:
            copy_array(step.out, theirs)
        else:
            np.add(step.mine, theirs, step.out)
        self._release(other)

    def _release(self, other: int) -> None:
        self._taken[other] += 1
        self._flags[self._done[other]] = self._taken[other]

    def _wait(self, flag: int, count: int) -> None:
        flags = self._flags
        if flags[flag] >= count:
            return
        for _ in range(self._polls):
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
                raise TimeoutError(f"{self.name}: another rank has not come in {self._limit:g} s")


def _trouble() -> str:
    """Why there is no floor here; empty where there is one."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create"
    if platform.machine() not in _ORDERED:
        return f"stores may overtake each other on {platform.machine()}"
    return ""


def map_together(place: Place, nbytes: int, key: str) -> memoryview:
    """Zeroed memory of rank 0's, without a name, mapped by all."""
    if place.rank == 0:
        fd = os.memfd_create("benchmarks", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        place.store.set(key, f"/proc/{os.getpid()}/fd/{fd}")
    else:
        fd = os.open(place.store.get(key).decode(), os.O_RDWR | os.O_CLOEXEC)
    memory = memoryview(mmap.mmap(fd, nbytes))
    place.store.set(f"{key}, mapped by {place.rank}", "")
    if place.rank == 0:  # through its descriptor, which closes now
        for other in range(1, place.ranks):
            place.store.get(f"{key}, mapped by {other}")
    os.close(fd)
    return memory


def copy_array(into: Array, data: Array) -> None:
    """In pieces like the library's, which are copied faster than all at once."""
    if into.nbytes <= AT_ONCE:
        np.copyto(into, data)
        return
    count = AT_ONCE // into.itemsize
    for start in range(0, len(into), count):
        np.copyto(into[start : start + count], data[start : start + count])


def _cut(array: Array, count: int, fewest: int = 0) -> list[Array]:
    """Into pieces of so many elements, the last of fewer; ``fewest`` pieces, if need be empty."""
    starts = range(0, max(len(array), count * fewest), count)
    return [array[start : start + count] for start in starts]


def _ahead(puts: Sequence[Put], takes: Sequence[Sequence[Take]]) -> Program:
    """Each chunk is put up before the ones before it are taken, so all ranks work at once."""
    for step in range(len(puts) + 1):
        yield from puts[step : step + 1]
        if step:
            yield from takes[step - 1]
