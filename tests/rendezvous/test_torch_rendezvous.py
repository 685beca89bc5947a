"""``init_method="aiodist://"``: the store at which torch's ranks meet."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from aiodist.torch_backend import rendezvous as torch_rendezvous
from aiodist.torch_backend.rendezvous import rendezvous
from tests.limits import scaled

LIMIT = timedelta(seconds=30)


def met(rank: int) -> tuple[Any, int, int]:
    return next(rendezvous(f"aiodist://?rank={rank}&world_size=2", LIMIT))


def test_a_rank_that_reaches_the_store_of_the_meeting_before_connects_anew(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    before = c10d.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=LIMIT)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(met, 1)
        before.wait(["aiodist/here/1"])
        del before  # rank 0 has left the meeting before
        store, rank, size = met(0)
        theirs, number, _ = other.result()
    assert (rank, number, size) == (0, 1, 2)
    theirs.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_time_to_connect_is_part_of_the_timeout(
    rank: int, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """A rank that reached a store does not wait there for the others for the whole timeout anew."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    store = c10d.HashStore()
    store.set_timeout(LIMIT)  # as of a connection that was made at once
    monkeypatch.setattr(torch_rendezvous, "_tcp_store", lambda *_: store)
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        next(rendezvous(f"aiodist://?rank={rank}&world_size=2", timedelta(seconds=0.1)))
    assert time.monotonic() - began < scaled(10)
