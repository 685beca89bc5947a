"""One rank of `aiodist bench`: ``python -m aiodist.bench.measuring_rank ORDER``, under the launcher."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import distributed as torch_distributed

from aiodist.bench.cases import Case, size_text
from aiodist.bench.measure import Repetitions, Samples, decode, encode, measure
from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers import PEERS
from aiodist.bench.peers.measured_peer import Place
from aiodist.bench.times import clock_name, combine, timing


class Agreement:
    """All ranks take rank 0's number, by way of a store of torch's."""

    def __init__(self, store: Any, rank: int, prefix: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = prefix
        self._count = 0

    def __call__(self, value: int) -> int:
        key = f"{self._prefix}/{self._count}"
        self._count += 1
        if self._rank == 0:
            self._store.set(key, str(int(value)))
        return int(self._store.get(key))


def empty(count: int) -> tuple[torch.Tensor, Array]:
    """Return memory as a tensor and as an array."""
    tensor = torch.empty(count, dtype=torch.float32)
    return tensor, tensor.numpy()


def serve(order: dict[str, Any]) -> None:
    """Measure the cases of ``order``. Rank 0 writes the times of all ranks to the file ``answer``."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    distributed: Any = torch_distributed  # its stubs do not name the stores
    store = distributed.TCPStore(address, port, ranks, is_master=rank == 0)
    peers = []
    for name in order["peers"]:
        peer = PEERS[name]()
        peer.open(Place(rank, ranks, distributed.PrefixStore(f"peer/{name}", store)))
        peers.append(peer)
    cases = [Case(**case) for case in order["cases"]]
    effort = Repetitions(**order["effort"])
    rows = []
    for number, case in enumerate(cases):
        if rank == 0:
            _show(
                f"measuring {case.operation}, {size_text(case.nbytes)} ({number + 1}/{len(cases)})"
            )
        agreement = Agreement(store, rank, f"agree/{number}")
        samples = measure(peers, Call(case, rank, empty), effort, agreement)
        samples.clock = clock_name()
        store.set(f"samples/{number}/{rank}", encode(samples))
        if rank == 0:
            keys = [f"samples/{number}/{each}" for each in range(ranks)]
            rows += _rows(case, [decode(store.get(key)) for key in keys])
    for peer in peers:
        peer.close()
    if rank == 0:
        _show("")
        Path(order["answer"]).write_text(json.dumps(rows), encoding="utf-8")
    store.set(f"over/{rank}", "")
    if rank == 0:  # its store ends with it
        store.wait([f"over/{each}" for each in range(ranks)])


def _rows(case: Case, by_rank: Sequence[Samples]) -> list[dict[str, Any]]:
    rows = []
    clocks = [samples.clock for samples in by_rank]
    for peer in by_rank[0].intervals:
        times = combine(case, [samples.intervals[peer] for samples in by_rank], clocks)
        rows.append({"case": asdict(case), "peer": peer, "timing": asdict(timing(times))})
    return rows


def _show(text: str) -> None:
    """Show how far it is, in place, where a terminal shows it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    serve(json.loads(sys.argv[1]))
