"""The least that an all-reduce of two ranks can do, if their tensors lay in shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import Place, UnsupportedError
from benchmarks.peers.floor import Floor, copy_array, map_together


class FloorShared(Floor):
    """All-reduce of tensors that lie in shared memory already: add a half, copy a half.

    No library is given such tensors. They are moved there and back while no time is taken.
    """

    name = "floor-shared"

    def open(self, place: Place) -> None:
        super().open(place)
        if place.ranks != 2:
            self._trouble = "it is of two ranks"
        self._place = place
        self._maps = 0  # so far
        self._count = -1  # elements of what is mapped
        self._tensors_of: list[Array] = []

    def bind(self, call: Call) -> Callable[[], object]:
        self.check()
        if call.operation != "all_reduce":
            raise UnsupportedError("all_reduce is all there is of it")
        mine, theirs = self._tensors(call)
        my_part, rest = _halves(mine, call.rank)
        their_part, their_rest = _halves(theirs, call.rank)

        def run() -> None:
            np.add(my_part, their_part, my_part)
            self.barrier()
            copy_array(rest, their_rest)

        return run

    def write(self, call: Call, number: int) -> None:
        super().write(call, number)
        shared, _ = self._tensors(call)
        np.copyto(shared, np.asarray(call.source))

    def check_result(self, call: Call, number: int) -> None:
        shared, _ = self._tensors(call)
        np.copyto(np.asarray(call.source), shared)
        super().check_result(call, number)

    def _tensors(self, call: Call) -> list[Array]:
        """This rank's and the other's, of the call's length."""
        count = call.case.count
        if count != self._count:
            self._maps += 1
            memory = map_together(self._place, 2 * 4 * count, f"tensors {self._maps}")
            both = np.frombuffer(memory, np.float32)
            self._count, self._tensors_of = count, [both[:count], both[count:]]
        return self._tensors_of[:: -1 if call.rank else 1]


def _halves(array: Array, rank: int) -> tuple[Array, Array]:
    """(this rank's, the other's); of an odd length rank 1 has more."""
    half = len(array) // 2
    return (array[:half], array[half:]) if rank == 0 else (array[half:], array[:half])
