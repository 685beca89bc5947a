"""One rank of an MPI job: measures a block of cases, by direct calls and by aiodist in turn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aiodist.bench.cases import Case
from aiodist.bench.measure import Effort, encode, measure
from aiodist.bench.operations import Call
from aiodist.bench.pattern import Array, in_usual_pages
from aiodist.bench.peers.base import Place
from benchmarks.peers.mpi import AsyncMpi, Mpi
from benchmarks.placement import pin


def main(name: str, order_path: str, samples_path: str) -> None:
    """Measure what the file of orders says; rank 0 writes what all ranks saw."""
    order = json.loads(Path(order_path).read_text())
    peer = Mpi(name)
    peer.open()
    comm = peer.comm
    over = AsyncMpi(name)
    over.open(Place(comm.rank, comm.size, None))
    if order["pinned"]:
        pin(comm.rank, comm.size)
    found = []
    for fields in order["cases"]:
        call = Call(Case(**fields), comm.rank, empty)
        samples = measure([peer, over], call, Effort(**order["effort"]), comm.bcast)
        found.append(comm.gather(encode(samples)))
    over.close()
    if comm.rank == 0:
        Path(samples_path).write_text(json.dumps(found))


def empty(count: int) -> tuple[Array, Array]:
    """Memory twice: as the peer and as the check take it."""
    array = in_usual_pages(count)
    return array, array


if __name__ == "__main__":
    main(*sys.argv[1:])
