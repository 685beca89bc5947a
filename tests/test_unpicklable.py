"""Objects that hold what belongs to a process refuse to be copied and pickled."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist
import aiodist.sync
from aiodist.rank_processes.cluster import Cluster
from aiodist.testing.in_process import run_ranks
from aiodist.unpicklable import Unpicklable

MEANS: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, pickle.dumps]


def refuses(obj: object) -> None:
    name = type(obj).__name__
    for means in MEANS:
        with pytest.raises(TypeError, match=f"^cannot copy or pickle a {name}: it belongs to the"):
            means(obj)


async def test_works_refuse_and_a_copy_of_a_group_is_the_group() -> None:
    async def on_rank(rank: int) -> None:
        group = aiodist.group.WORLD
        assert group is not None
        work = group.all_reduce(np.ones(2))
        stream = group.open_stream(1 - rank)
        for obj in (work, stream, aiodist.barrier_init(), aiodist.membership()):
            refuses(obj)
        assert copy.copy(group) is group
        assert copy.deepcopy({"group": group})["group"] is group
        with pytest.raises(
            TypeError, match=r"^cannot copy or pickle a ProcessGroup: it belongs to"
        ):
            pickle.dumps(group)
        await work
        await stream.close()

    await run_ranks(2, on_rank)


async def test_a_file_store_keeps_its_descriptor(tmp_path: Path) -> None:
    async with await aiodist.FileStore.open(str(tmp_path / "store")) as store:
        refuses(store)
        gc.collect()
        await store.set("key", b"value")
        assert await store.get("key") == b"value"


async def test_the_other_stores_refuse() -> None:
    refuses(aiodist.MemoryStore())
    refuses(aiodist.PrefixStore("run/", aiodist.MemoryStore()))
    async with await aiodist.TcpStoreServer.start("127.0.0.1", 0) as server:
        refuses(server)


@pytest.mark.parametrize(
    "cls",
    [
        Cluster,
        aiodist.Service,
        aiodist.TcpStore,
        aiodist.sync.PersistentCollective,
        aiodist.sync.Store,
    ],
    ids=lambda cls: f"{cls.__module__}.{cls.__name__}",
)
def test_classes_that_hold_processes_or_connections_refuse(cls: type) -> None:
    assert issubclass(cls, Unpicklable)
    refuses(object.__new__(cls))


def test_a_rank_outside_a_group_is_told_by_the_same_object() -> None:
    outside = aiodist.GroupMember.NON_GROUP_MEMBER
    for twin in (copy.copy(outside), copy.deepcopy(outside), pickle.loads(pickle.dumps(outside))):
        assert twin is outside
