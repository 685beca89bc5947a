"""What a network does with no library: right, and never waiting for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from aiodist.bench.cases import Case
from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import Place, UnsupportedError
from benchmarks.peers import floor_tcp
from benchmarks.peers.floor_tcp import FloorTcp
from benchmarks.rank import empty


def test_the_tcp_floor_takes_equal_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_HOST_ID", "one")
    store = HashStore()
    for rank, host in ((1, "one"), (2, "another")):
        store.set(f"host of {rank}", host)
    peer = FloorTcp()
    peer.open(Place(0, 3, store))

    with pytest.raises(UnsupportedError, match="equal hosts"):
        peer.turn(Call(Case("barrier", 3, 0), 0, empty), range(1))
    peer.close()


def test_over_hosts_each_call_of_a_row_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn binds its operation once, and checks the result of every call."""
    monkeypatch.setattr(floor_tcp, "_hosts", lambda place: [[0, 1], [2, 3]])
    store = HashStore()

    def run(rank: int) -> None:
        peer = FloorTcp(5.0)
        peer.open(Place(rank, 4, store))
        try:
            for operation in ("broadcast", "all_reduce", "all_to_all"):
                peer.turn(Call(Case(operation, 4, 64), rank, empty), range(3))
        finally:
            peer.close()

    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(run, rank) for rank in range(4)]:
            ended.result()


def pair(limit: float) -> list[FloorTcp]:
    """Two that have met, however long that took, and wait for so long from then on."""
    store = HashStore()
    peers = [FloorTcp(), FloorTcp()]
    other = threading.Thread(target=peers[1].open, args=(Place(1, 2, store),))
    other.start()
    peers[0].open(Place(0, 2, store))
    other.join()
    for peer in peers:
        peer._limit = limit
    return peers


def test_a_rank_that_does_not_come_ends_the_wait() -> None:
    peers = pair(0.05)

    with pytest.raises(TimeoutError, match=r"floor-tcp: another rank has not come in 0\.05 s"):
        peers[0].barrier()
    for peer in peers:
        peer.close()


def test_a_rank_that_ends_ends_the_other() -> None:
    peers = pair(5.0)
    peers[1].close()

    with pytest.raises(ConnectionError, match="has ended"):
        peers[0].barrier()
    peers[0].close()
