"""One rank of the processes that hold all peers but MPI: does what the runner's store tells it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, encode, measure
from aiodist.bench.measured_operations import Call
from aiodist.bench.measuring_rank import Agreement, empty
from aiodist.bench.peers.measured_peer import Place
from benchmarks.arrival.calls import PatternCall
from benchmarks.arrival.cases import PatternCase
from benchmarks.peers import make_peer
from benchmarks.placement import pin
from benchmarks.steps.cases import StepCase
from benchmarks.steps.measure import measure_steps

FOREVER = timedelta(days=1)
"""How long a rank waits for its next order. The runner ends ranks; they do not end themselves."""


def serve(rank: int, ranks: int, meeting: str, peer_names: list[str], pinned: bool) -> None:
    """Open the peers, then measure case after case until the runner says stop.

    ``meeting``: the port of the runner's store, or the path of its file.

    Steps make torch's default group themselves: for them there are no peers.
    """
    if pinned:
        pin(rank, ranks)
    torch.set_num_threads(1)
    store: Any
    if meeting.isdecimal():
        store = distributed.TCPStore("127.0.0.1", int(meeting), is_master=False, timeout=FOREVER)
    else:
        store = distributed.FileStore(meeting, -1)
        store.set_timeout(FOREVER)
    peers = [make_peer(name) for name in peer_names]
    for number, peer in enumerate(peers):
        peer.open(Place(rank, ranks, distributed.PrefixStore(f"peer{number}", store)))
    store.set(f"ready/{rank}", "")
    number = 0
    while (order := json.loads(store.get(f"order/{number}"))) is not None:
        agreement = Agreement(store, rank, f"agree/{number}")
        effort = Repetitions(**order["effort"])
        if "step" in order:
            place = distributed.PrefixStore(f"step/{number}", store)
            case = StepCase.of(order["step"])
            samples = measure_steps(case, rank, place, effort, agreement)
        elif "pattern" in order:
            pattern_call = PatternCall(PatternCase.of(order["pattern"]), rank, empty)
            samples = pattern_call.samples(measure(peers, pattern_call, effort, agreement))
        else:
            call = Call(Case(**order["case"]), rank, empty)
            samples = measure(peers, call, effort, agreement)
        store.set(f"samples/{number}/{rank}", encode(samples))
        number += 1
    for peer in peers:
        peer.close()
