"""The sum of gradients without any library, as a bound for what a backend can reach."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import Place, UnsupportedError
from benchmarks.peers.floor import Floor


class BareSum:
    """Adds up arrays over all ranks in the thread that calls; see `peers.floor`.

    Where ranks have a core each, no other thread gets more done: backward takes all of it.
    """

    def __init__(self, place: Place) -> None:
        """Meet the other ranks. Raises UnsupportedError, on all ranks alike, where it cannot run."""
        if place.ranks & (place.ranks - 1):
            raise UnsupportedError("the ranks' shares of a loss are rounded")
        self._floor = Floor()
        self._floor.open(place)
        self._floor.check()
        self._bound: dict[tuple[int, int], Callable[[], None]] = {}

    def __call__(self, array: Array) -> None:
        """Add up ``array``, of float32, in place. All ranks call it for the same lengths by turns."""
        key = array.ctypes.data, len(array)
        run = self._bound.get(key)
        if run is None:
            run = self._bound[key] = self._floor.bind_arrays("all_reduce", array, array)
        run()
