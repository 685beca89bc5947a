"""The start and the end of the blocking API."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiodist.api import closing
from aiodist.api.lifecycle import init_process_group as init_async
from aiodist.errors import PeerLostError
from aiodist.groups.handle import Group
from aiodist.groups.world import World, current_world
from aiodist.links.host import outlast
from aiodist.observe.answering import heed_signal
from aiodist.sync import torch_group as default_of_torch
from aiodist.sync.adapter import mirrors
from aiodist.sync.loop_handoff import LONGEST_LINGER
from aiodist.sync.portal import portal
from aiodist.sync.stores import Store
from aiodist.types import DEFAULT_TIMEOUT

_EXIT_SECONDS = 2.0
"""How long operations have to finish when the process ends."""

_LOST_SECONDS = 2.0
"""How long a process whose last operation failed by a lost rank waits for the end of lost processes."""


@dataclass(frozen=True)
class Member:
    """A world that lives on the portal's loop, and the store where its ranks meet."""

    world: World
    store: Any = None

    @property
    def longest_pause(self) -> float:
        return LONGEST_LINGER if self.world.may_stand_still else 0.0

    async def leave(self) -> None:
        world = self.world
        errors = [str(record.error) for record in world.recorder.latest(1)]
        # A rank that fails because of another one ends after it, on the same host: launchers such as
        # torchrun report the process that they see end first.
        if world.is_initialized and errors and errors[0].startswith(PeerLostError.__name__):
            await outlast(world.endpoint.lost_processes(), _LOST_SECONDS)
        await closing.close_world(world, _EXIT_SECONDS)

    def close_in_child(self) -> None:
        self.world.close_in_child()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and other.world is self.world


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: float | timedelta | None = DEFAULT_TIMEOUT,
    world_size: int = -1,
    rank: int = -1,
    store: Any | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: Any | None = None,
    *,
    init_timeout: float | timedelta | None = None,
    liveness_timeout: float | timedelta | None = None,
    allow_pickle: bool | None = None,
    buffer_bytes: int | None = None,
    capacity: int | None = None,
    torch_group: bool | None = None,
) -> None:
    """Meet the other ranks and make the default group. It returns when all of them are there.

    It starts the thread that runs the event loop, and ends it if it fails. A program that ends
    without `destroy_process_group` sends what is queued and says goodbye, within some seconds.

    torch's default group may be made over the same ranks, for DistributedDataParallel,
    DistributedSampler and the like. torch's own ``init_process_group`` may still replace it.
    `destroy_process_group` of either API closes both.

    Args:
        backend: "aiodist", which "gloo" names too, "mpi", "nccl", "torch:gloo", or one for each
            kind of device, as ``"cpu:aiodist,cuda:nccl"``. None is "aiodist", and that pair if
            NCCL can run and this process sees several GPUs, one for each rank of its host.
        init_method: ``env://`` (the default: from the environment of ``aiodist run``, torchrun,
            Slurm, Open MPI, MPICH), ``tcp://host:port``, or ``file:///path``. Backend "mpi" takes
            rank and size from MPI.
        timeout: The default of every operation: seconds or a timedelta. None means 30 minutes,
            ``math.inf`` no limit.
        world_size: How many ranks there are; -1 reads it from where ``init_method`` says.
        rank: This rank, from 0; -1 reads it from where ``init_method`` says.
        store: A store of ours or torch's, in place of ``init_method``; with ``rank`` and
            ``world_size``.
        group_name: A name of the default group for messages.
        pg_options: torch's own options, for one of torch's groups.
        device_id: This rank's GPU, for "nccl"; None is the LOCAL_RANK-th.
        init_timeout: How long the ranks have to meet: seconds or a timedelta. None means
            AIODIST_INIT_TIMEOUT, or ``timeout``.
        liveness_timeout: Seconds of silence after which a rank counts as lost, where the kernel
            does not say so at once. None means AIODIST_LIVENESS_TIMEOUT, or 10; 0 turns the watch
            off.
        allow_pickle: The default of every operation on objects; None means AIODIST_ALLOW_PICKLE,
            or False. Unpickling runs code that the sender chose: allow it only where all ranks
            are trusted.
        buffer_bytes: How many bytes this rank buffers, for each other rank, of messages without a
            receive. None means AIODIST_BUFFER_BYTES, or 64 MiB.
        capacity: How many ranks there may be at most, equal on all ranks; further processes come
            in by `grow` and `rejoin`. None means ``world_size``.
        torch_group: Whether torch's default group is made, too. None means AIODIST_TORCH_GROUP,
            or where torch is imported and has no default group.

    Raises:
        InvalidUsageError: A value is invalid, variables are missing (all are named in one
            message), or the world is initialised already.
        StoreTimeoutError: Ranks have not arrived in time; the error names them.
        PeerLostError: A rank that had arrived died, gave up or fell silent.
        DistNetworkError: A host or a port cannot be used.
        DistStoreError: The store fails.
    """
    with opening_world(torch_group, store) as run:
        run(
            init_async,
            backend,
            init_method,
            timeout,
            world_size,
            rank,
            inner(store),
            group_name,
            pg_options,
            device_id,
            init_timeout=init_timeout,
            liveness_timeout=liveness_timeout,
            allow_pickle=allow_pickle,
            buffer_bytes=buffer_bytes,
            capacity=capacity,
        )


@contextmanager
def opening_world(torch_group: bool | None, store: Any) -> Iterator[Callable[..., Any]]:
    """Give the block a `Portal.run` that opens the world, which uses the portal's loop from then on.

    ``torch_group``: as of `init_process_group`. ``store``: where the ranks meet.
    """
    asked = default_of_torch.wanted(torch_group, os.environ)  # before the ranks meet
    loop_thread = portal()
    member = Member(current_world(), store)
    loop_thread.enter()
    try:
        with loop_thread.opening(lambda _: member) as run:
            yield run
        try:
            heed_signal(member.world.observer)
            default_of_torch.make(member.world, asked)
        except BaseException:
            destroy_process_group()
            raise
    finally:
        loop_thread.leave()


def inner(store: Any) -> Any:
    """Return the store of the async API behind one of the blocking API; any other object as it is."""
    return store.inner if isinstance(store, Store) else store


@mirrors(closing.destroy_process_group)
def destroy_process_group(group: Group | None = None) -> None:
    """Close a group, or all of them.

    With the last group, the thread of the event loop ends.
    """
    _close(closing.destroy_process_group, group)


@mirrors(closing.abort_process_group)
def abort_process_group(group: Group | None = None) -> None:
    """Close a group, or all of them, at once.

    Threads that wait for an operation are freed.
    """
    _close(closing.abort_process_group, group)


def _close(close: Callable[[Group | None], Coroutine[Any, Any, None]], group: Group | None) -> None:
    loop_thread = portal()
    world = current_world()
    try:
        loop_thread.run(close, group)
    finally:
        if not world.is_initialized:
            loop_thread.remove_user(Member(world))
            default_of_torch.forget(world)
