"""Groups: sub-groups, splitting, destroying, and initialising again."""

from __future__ import annotations

import asyncio
import copy
import faulthandler
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import perf_counter, sleep
from typing import Any

import pytest
import torch
import torch.distributed as dist

import aiodist.sync
from aiodist.errors import InvalidUsageError
from aiodist.groups.group_engine import GroupEngine
from aiodist.torch_backend import connect
from aiodist.torch_backend.group import TorchGroup
from tests.torch_backend.programs.ddp import default_store, error_of


def answers(rank: int, size: int) -> None:
    whole = dist.group.WORLD
    assert isinstance(whole, TorchGroup)
    assert dist.get_backend() == "aiodist"
    assert whole.name() == "aiodist"
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert (whole.rank(), whole.size()) == (rank, size)
    assert whole.group_name == "0"
    assert whole.group_desc == "default_pg"
    named = dist.new_group(group_desc="a description")
    assert named.group_desc == "a description"
    assert not aiodist.sync.is_initialized()  # that API has a world of its own
    whole.set_timeout(timedelta(seconds=30))
    if hasattr(dist, "get_backend_impl"):  # since torch 2.15
        assert dist.get_backend_impl() is dist.get_backend_impl(whole, torch.device("cpu")) is whole
        assert not dist._supports_reconfigure()
        assert not dist._supports_window()
        assert not whole.supports_abort_hooks
        assert not whole.supports_completion_hooks
        with pytest.raises(NotImplementedError, match="time estimator"):
            dist._time_estimator(device=torch.device("cpu")).__enter__()
        dist.set_timeout(timedelta(seconds=40))
        assert whole._engine.timeout == 40
        dist.set_timeout(timedelta(seconds=50), named)
        assert (whole._engine.timeout, named._engine.timeout) == (40, 50)
    for wrong in (timedelta(seconds=-3), timedelta(0), -3):
        with pytest.raises(InvalidUsageError, match="timeout must be positive"):
            whole.set_timeout(wrong)
    with pytest.raises(TypeError, match="timeout must be a number of seconds or a"):
        whole.set_timeout("3")
    with pytest.raises(TypeError, match="timeout must be a number of seconds or a"):
        whole.set_timeout(None)
    with pytest.raises(InvalidUsageError, match="timeout must be positive"):
        dist.new_group([0, 1], timeout=timedelta(seconds=-1))
    options = named._get_backend(torch.device("cpu")).options  # as programs for Gloo and NCCL ask
    options._timeout = timedelta(seconds=7)
    assert (named._engine.timeout, options._timeout) == (7, timedelta(seconds=7))
    named.set_timeout(math.inf)
    assert options._timeout == copy.deepcopy(options)._timeout == timedelta(days=365)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(TypeError, match="timeout must be a timedelta, such as"):
        work.wait(5)
    assert work.wait(timedelta(seconds=20))
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == size


def later_timeout(rank: int, size: int) -> None:
    """An operation has the timeout that the group had at the call, also if the loop is slow to start it."""
    whole = dist.group.WORLD
    before = whole._engine.timeout
    timeouts: list[float | None] = []
    late: list[Callable[[], None]] = []
    start, post = GroupEngine.start, whole._world.post

    def noted(group: GroupEngine, operation: Any, timeout: float | None = None) -> Any:
        timeouts.append(timeout)
        return start(group, operation, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupEngine, "start", noted)
        patch.setattr(whole._world, "post", late.append)
        works = [dist.all_reduce(torch.ones(1), async_op=True)]
        whole.set_timeout(timedelta(seconds=50))
        works += [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.ones(1), 1 - rank)]
        whole._get_backend(torch.device("cpu")).options._timeout = timedelta(seconds=40)
        patch.setattr(whole._world, "post", post)
        for each in late:
            post(each)
        for work in works:
            work.wait()
    assert timeouts == [before, 50, 50]
    assert whole._engine.timeout == 40


def sequence_numbers(rank: int, size: int) -> None:
    """As with Gloo, they count the collectives of each group."""
    group = dist.group.WORLD
    group._set_sequence_number_for_group()
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 0)
    part = dist.new_group([0, 1])
    dist.barrier(part)
    assert part._get_sequence_number_for_group() == 1
    assert group._get_sequence_number_for_group() == before + 2


def subgroups(rank: int, size: int) -> None:
    """They share the connections and are independent; ranks outside know nothing of them."""
    pairs = [dist.new_group([a, b]) for a in range(size) for b in range(a + 1, size)]
    members = [(a, b) for a in range(size) for b in range(a + 1, size)]
    works = []
    for group, pair in zip(pairs, members, strict=True):
        if rank in pair:
            t = torch.tensor([float(rank)])
            works.append((dist.all_reduce(t, group=group, async_op=True), t, sum(pair)))
    for work, t, expected in reversed(works):
        work.wait()
        assert t.item() == expected
    backwards = dist.new_group(list(reversed(range(size))))
    assert dist.get_rank(backwards) == rank
    own, _ = dist.new_subgroups(2)
    assert dist.get_process_group_ranks(own) == [rank // 2 * 2, rank // 2 * 2 + 1]
    if rank < 2:
        local = dist.new_group([0, 1], use_local_synchronization=True)
        dist.barrier(local)
        dist.destroy_process_group(local)
        again = dist.new_group([0, 1], use_local_synchronization=True)
        t = torch.ones(1)
        dist.broadcast(t, 0, group=again)
    dist.destroy_process_group(own)
    for group, pair in zip(pairs, members, strict=True):
        if rank in pair:
            dist.destroy_process_group(group)
    dist.barrier()


def splitting(rank: int, size: int) -> None:
    half = [r for r in range(size) if r % 2 == rank % 2]
    options = copy.deepcopy(dist.group.WORLD.options)  # which torch's function passes
    assert options._timeout == timedelta(seconds=60)
    part = dist.group.WORLD.split_group(half, timedelta(seconds=20), options, "half")
    assert (part.rank(), part.size()) == (half.index(rank), len(half))
    assert part.group_name == "half"
    t = torch.tensor([float(rank)])
    part.allreduce([t]).wait()
    assert t.item() == sum(half)
    part.shutdown()
    ended = weakref.ref(part)
    del part
    dist.group.WORLD.split_group([rank])
    assert ended() is None
    for pair in ([0, 1], [1, 2], [0, 2]):
        if rank in pair:
            t = torch.tensor([float(rank)])
            dist.group.WORLD.split_group(pair).allreduce([t]).wait()
            assert t.item() == sum(pair)
    for wrong in ([0, 0], [-1, 0], [0, size], []):
        with pytest.raises(RuntimeError, match="rank"):
            dist.group.WORLD.split_group(wrong)


def split_by_torch(rank: int, size: int) -> None:
    """torch's own function for it, from the default group and from a group made so."""
    halves = [[r for r in range(size) if r % 2 == parity] for parity in (0, 1)]
    part = dist.split_group(None, halves)
    mine = halves[rank % 2]
    assert dist.get_process_group_ranks(part) == mine
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=part)
    assert t.item() == sum(mine)
    single = dist.split_group(part, [[0]])
    if rank == mine[0]:
        assert dist.get_process_group_ranks(single) == [rank]
        dist.all_reduce(t, group=single)
        assert t.item() == sum(mine)
        dist.destroy_process_group(single)
    dist.destroy_process_group(part)
    dist.barrier()


def again(rank: int, size: int) -> None:
    """Destroyed and initialised anew, three times.

    Each time at another file: torch's FileStore removes the file when the last rank leaves it,
    just when the first may have come back.
    """
    folder = os.environ["TEST_FOLDER"]
    for number in range(3):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group(
            "aiodist", init_method=f"file://{folder}/{number}", rank=rank, world_size=size
        )
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == size


def after_workers_that_died(rank: int, size: int) -> None:
    """Meet at a store where processes that have died since tried to meet before.

    Workers that torchrun restarts after a death find this: the store belongs to its agent.
    """
    files = default_store()
    dist.destroy_process_group()

    def start(seconds: float) -> None:
        dist.init_process_group(
            "aiodist",
            store=dist.FileStore(f"{os.environ['TEST_FOLDER']}/kept", -1),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )

    if rank != 1:
        child = os.fork()
        if child == 0:
            said = error_of(lambda: start(0.2))
            os._exit(0 if "did not arrive" in said and f"rank {rank}: " in said else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        files.set(f"no meeting {rank}", "")
    files.wait([f"no meeting {other}" for other in range(size) if other != 1])
    for _ in range(2):
        start(40)
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == size
        dist.destroy_process_group()


def back_before_rank_0(rank: int, size: int) -> None:
    """Initialise again while rank 0 still serves the store of the previous group.

    Each time, the others come back before rank 0 destroys its group. The server that they use ends
    with the store of rank 0. They meet at the next server, and so does torch; the last has no next.
    """
    files = default_store()
    if rank == 0:
        keeps_port = dist.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True)
        files.set("port", str(keeps_port.port))
    address = f"tcp://127.0.0.1:{int(files.get('port'))}"

    def start(seconds: float) -> None:
        timeout = timedelta(seconds=seconds)
        dist.init_process_group(
            "aiodist", init_method=address, rank=rank, world_size=size, timeout=timeout
        )

    dist.destroy_process_group()
    for _ in range(3):
        start(40)
        keeps_port = None
        t = torch.tensor([rank + 1.0])
        dist.all_reduce(t)
        assert t.item() == sum(range(1, size + 1))
        t = torch.ones(1)
        dist.all_reduce(t, group=dist.new_group(backend="gloo"))  # meets at torch's own store
        assert t.item() == size
        if rank == 0:
            _wait_for_second_visits(size)
        dist.destroy_process_group()
    if rank:
        said = error_of(lambda: start(1.5))  # that rank 0 closed the store, or has not come to it
        assert "within 1.5 s" in said, said


def _wait_for_second_visits(size: int) -> None:
    """Until all other ranks are at this server anew."""
    store = dist.PrefixStore("aiodist/", default_store())
    for other in range(1, size):
        while store.add(f"aiodist/visits/{other}", 0) < 2:
            pass


def beside_gloo(rank: int, size: int) -> None:
    """A group of ours where the default one is Gloo's meets by itself."""
    dist.destroy_process_group()
    folder = os.environ["TEST_FOLDER"]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/beside", rank=rank, world_size=size
    )
    ours = dist.new_group([0, 1], backend="aiodist")
    t = torch.ones(1)
    if rank < 2:
        dist.all_reduce(t, group=ours)
        assert t.item() == 2
    theirs = dist.new_group(backend="gloo")
    dist.all_reduce(t, group=theirs)
    # While `t` lives: torch 2.6 may wait for ever for a thread of Gloo's that frees the last tensor.
    dist.destroy_process_group()


def monitored_barrier(rank: int, size: int) -> None:
    """It names all ranks that did not come."""
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20))
    store = default_store()
    if rank == 0:
        said = error_of(lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=0.3)))
        assert "barrier" in said, said
        assert "ranks 1, 2" in said, said
        store.set("heard", "")
    else:
        store.wait(["heard"])
        said = error_of(dist.barrier)
        assert "timed out after 0.3 s on rank 0" in said, said
    dist.barrier()


def destroyed(rank: int, size: int) -> None:
    """What is under way or called later fails; it does not hang."""
    group = dist.new_group()
    waiting = dist.irecv(torch.ones(1), (rank + 1) % size, group=group)
    dist.barrier()
    group.abort()
    for work in (waiting, group.allreduce([torch.ones(1)])):
        said = error_of(work.wait)
        assert "destroyed" in said, said
    group.shutdown()
    dist.barrier()
    whole = dist.group.WORLD
    dist.destroy_process_group()
    error_of(whole.allreduce([torch.ones(1)]).wait)


def forked(rank: int, size: int) -> None:
    """A child of a rank cannot use the rank's group, and is told so; the rank's goes on."""
    dist.all_reduce(
        torch.ones(1), async_op=True
    ).get_future().wait()  # starts a thread, which no child has
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(30, exit=True)
        work = dist.group.WORLD.allreduce([torch.ones(1)])
        said = [error_of(work.wait), error_of(work.get_future().wait)]
        os._exit(0 if all("forked" in each for each in said) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()


def in_an_event_loop(rank: int, size: int) -> None:
    """torch's calls block, in a thread with a running loop too, as in a notebook."""
    dist.destroy_process_group()
    folder = os.environ["TEST_FOLDER"]

    async def cell() -> float:
        dist.init_process_group(
            "aiodist", init_method=f"file://{folder}/loop", rank=rank, world_size=size
        )
        t = torch.ones(1)
        dist.all_reduce(t)
        dist.destroy_process_group()
        return t.item()

    assert asyncio.run(cell()) == size


def dropped(rank: int, size: int) -> None:
    """A group whose last reference goes is closed: peers fail at once, and nothing stays open."""
    files = dist.FileStore(f"{os.environ['TEST_FOLDER']}/dropped", -1)

    def group(number: int) -> TorchGroup:
        store = dist.PrefixStore(f"{number}/", files)
        made = connect(store, rank, size, timeout=timedelta(seconds=50))
        t = torch.ones(1)
        made.allreduce([t]).wait()
        assert t.item() == size
        return made

    dist.destroy_process_group()  # its heartbeats may make a connection at any time
    before, threads = descriptors(), count_threads()
    for number in range(3):
        first, second = group(2 * number), group(2 * number + 1)
        if rank == 0:
            del first
            gone = perf_counter()
        else:
            gone = perf_counter()
            said = error_of(first.allreduce([torch.ones(1)]).wait)
            assert "rank 0" in said, said
            assert perf_counter() - gone < 25, "the others waited for the timeout"
            del first
        second.allreduce([torch.ones(1)]).wait()
        del second
    end = perf_counter() + 25
    while (descriptors() - before or count_threads() > threads) and perf_counter() < end:
        sleep(0.01)
    assert not (left := descriptors() - before), left
    assert count_threads() <= threads


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> Counter[str]:
    """What the descriptors refer to: several may refer to the like of `anon_inode:[eventpoll]`."""
    found = Counter[str]()
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread may have closed it by now
            found[os.readlink(entry)] += 1
    return found


def part_dropped(rank: int, size: int) -> None:
    """The same for a group over the default group's connections, which stay."""
    store = default_store()
    part = dist.group.WORLD.subgroup("part", list(range(size)), None)
    part.allreduce([torch.ones(1)]).wait()
    names = [group.group_name for group in part._world._world.groups]
    engine = part._engine
    del part
    end = perf_counter() + 25
    while engine in engine.world.groups and perf_counter() < end:
        sleep(0.01)
    assert engine not in engine.world.groups, names
    store.set(f"dropped {rank}", "")
    dist.barrier()
