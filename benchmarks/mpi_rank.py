"""One rank of an MPI job: measures a block of cases, by direct calls and by aiodist in turn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, encode, measure
from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array, in_usual_pages
from aiodist.bench.peers.measured_peer import Place
from benchmarks.arrival.calls import PatternCall
from benchmarks.arrival.cases import PatternCase
from benchmarks.peers.mpi import AsyncMpi, Mpi
from benchmarks.placement import pin


def main(name: str, order_path: str, samples_path: str) -> None:
    """Measure what the file of orders says; rank 0 writes what all ranks saw."""
    order = json.loads(Path(order_path).read_text())
    peer = Mpi(name)
    peer.open()
    comm = peer.comm
    effort = Repetitions(**order["effort"])
    if "pattern" in order:
        call = PatternCall(PatternCase.of(order["pattern"]), comm.rank, empty)
        samples = call.samples(measure([peer], call, effort, comm.bcast))
        found = [comm.gather(encode(samples))]
    else:
        found = _cases(order["cases"], peer, effort, pinned=order["pinned"])
    if comm.rank == 0:
        Path(samples_path).write_text(json.dumps(found))


def _cases(
    cases: list[dict[str, Any]], peer: Mpi, effort: Repetitions, *, pinned: bool
) -> list[list[str]]:
    """Measure direct calls and aiodist over the same MPI by turns. Return what all ranks saw."""
    comm = peer.comm
    over = AsyncMpi(peer.name)
    over.open(Place(comm.rank, comm.size, None))
    if pinned:
        pin(comm.rank, comm.size)
    found = []
    for fields in cases:
        call = Call(Case(**fields), comm.rank, empty)
        found.append(comm.gather(encode(measure([peer, over], call, effort, comm.bcast))))
    over.close()
    return found


def empty(count: int) -> tuple[Array, Array]:
    """Memory twice: as the peer and as the check take it."""
    array = in_usual_pages(count)
    return array, array


if __name__ == "__main__":
    main(*sys.argv[1:])
