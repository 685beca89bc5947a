"""MPI on numpy's memory: through mpi4py directly, and through aiodist's backend "mpi"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.both_apis import AsyncApi
from aiodist.bench.peers.measured_peer import BlockingPeer, Place, UnsupportedError

OVER = "-aiodist"
"""Ends the names of peers that are aiodist over the MPI in front of it."""


class AsyncMpi(AsyncApi):
    """``import aiodist`` with backend "mpi", whose overhead over a direct call this shows."""

    def __init__(self, name: str) -> None:
        super().__init__(name + OVER, None)

    async def _initialise(self, place: Place) -> None:
        await self._dist.init_process_group("mpi")


class Mpi(BlockingPeer):
    """Whichever MPI the process was started by."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, place: Place | None = None) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self.comm: Any = MPI.COMM_WORLD

    def bind(self, call: Call) -> Callable[[], object]:
        comm, source, target = self.comm, call.source, call.target
        match call.operation:
            case "all_reduce":
                return partial(comm.Allreduce, self._mpi.IN_PLACE, source)
            case "broadcast":
                return partial(comm.Bcast, source, 0)
            case "all_gather":
                return partial(comm.Allgather, source, target)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, source, target)
            case "all_to_all":
                return partial(comm.Alltoall, source, target)
            case "send_recv":
                return self._ping_pong(call)
            case "barrier":
                return partial(comm.Barrier)
        raise UnsupportedError(f"no operation {call.operation}")

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        pass  # mpi4py finalizes when the process ends

    def _ping_pong(self, call: Call) -> Callable[[], object]:
        comm, source, target = self.comm, call.source, call.target

        def ping() -> None:
            comm.Send(source, 1)
            comm.Recv(target, 1)

        def pong() -> None:
            comm.Recv(target, 0)
            comm.Send(target, 0)

        return ping if call.rank == 0 else pong
