"""The backend "mpi": every operation by MPI, on CPU tensors and arrays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.library import Mpi, check_thread, in_thread, load, translated
from aiodist.backends.mpi.messenger import MpiMessenger
from aiodist.backends.mpi.mpi_agreement import Agreement, checks
from aiodist.backends.mpi.operations import MpiOperations
from aiodist.backends.mpi.poller import Poller
from aiodist.backends.mpi.reductions import MpiReduction
from aiodist.backends.native import NativeBackend
from aiodist.backends.object_streams import Stream
from aiodist.completion import Driver, T
from aiodist.deadline import Deadline
from aiodist.errors import CollectiveTimeoutError, DistBackendError, InvalidUsageError
from aiodist.groups.backend import Received, Tensor
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.tensors import DType, Reduction
from aiodist.types import ReduceOp


class MpiBackend(NativeBackend):
    """One communicator, made when the group is; operations that start earlier wait for it.

    Checks, staging, objects and what MPI's reductions lack are the native backend's, over MPI's
    messages. A collective that fails on any rank ends the group: MPI cannot take it back.
    """

    name = "mpi"
    is_fragile = True
    why_fixed = (
        "the processes of an MPI job are MPI's for good. Start the job anew, or go on among all of "
        'them by destroy_process_group() and init_process_group("mpi"). A job that is to outlive '
        'its ranks needs backend "aiodist", started by `aiodist run --max-restarts`'
    )

    def __init__(self, group: GroupEngine) -> None:
        self._gate = Gate()
        self._closed = False
        self._loop = group.world.loop
        agreement = Agreement(self._gate, group.n_ranks, checks(os.environ))
        super().__init__(group, MpiOperations(group, self._gate, agreement))
        self._spin_policy = group.world.endpoint.spin_policy
        self._messenger = MpiMessenger(group.ranks, self._gate, self._spin_policy)
        group.carry_by(self._messenger, agreement)
        Driver(self._open(), self._opened).start()

    # -- the communicator

    async def ready(self, deadline: Deadline) -> None:
        """Raises DistBackendError, InvalidUsageError, or CollectiveTimeoutError at the deadline."""
        opened: asyncio.Future[None] = self._loop.create_future()

        def succeed() -> None:
            if not opened.done():
                opened.set_result(None)

        def fail(error: BaseException) -> None:
            if not opened.done():
                opened.set_exception(error)

        self._gate.run(succeed, fail)
        try:
            async with asyncio.timeout(None if deadline.timeout is None else deadline.remaining()):
                await opened
        except TimeoutError:
            raise CollectiveTimeoutError(
                f"MPI made no communicator for group {self._group.group_name!r} within "
                f"{deadline.timeout} s: not all of its ranks have come so far",
                operation="init_process_group",
                group=self._group.group_name,
            ) from None

    async def _open(self) -> None:
        mpi = await in_thread(self._loop, load)
        check_thread(mpi)
        everybody, ranks = mpi.COMM_WORLD, self._group.ranks
        world = self._group.world
        if (everybody.rank, everybody.size) != (world.rank, world.size):
            raise InvalidUsageError(
                f"MPI has this process as rank {everybody.rank} of {everybody.size}, the world as "
                f"rank {world.rank} of {world.size}: backend 'mpi' needs ranks started by mpiexec, "
                "with MPI's own numbers"
            )
        poller = Poller(mpi, self._loop, self._spin_policy)
        if ranks == tuple(range(everybody.size)):
            comm, request = everybody.Idup()
            await poller.watch(request)
        elif mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            raise DistBackendError(
                "a group of some of the ranks needs MPI initialised with MPI.THREAD_MULTIPLE: "
                "MPI makes its communicator in a call that blocks, in a thread beside the loop's"
            )
        else:
            comm = await in_thread(self._loop, lambda: self._some_of(mpi))
        if self._closed:
            comm.Free()
            return
        comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._gate.open(mpi, comm, poller)

    def _some_of(self, mpi: Mpi) -> Mpi:
        """A communicator of some ranks, which only they have to call for."""
        everybody = mpi.COMM_WORLD
        chosen = everybody.Get_group().Incl(self._group.ranks)
        try:
            return everybody.Create_group(chosen, self._group.id % (1 << 15))
        except mpi.Exception as error:
            raise translated(mpi, error) from None
        finally:
            chosen.Free()

    def _opened(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._gate.shut(error)

    def close(self) -> None:
        """Free the communicator, as all its ranks do, unless messages may be left in it.

        Requests that MPI has not completed go on, and messages that were not received stay. MPI
        reuses the number of a communicator for a later one, which would find them. In that case
        the communicator is kept.
        """
        if self._closed:
            return
        self._closed = True
        was_open = self._gate.is_open
        self._gate.shut(DistBackendError(f"group {self._group.group_name!r} is closed"))
        if was_open:
            quiet = self._gate.poller.close()
            if quiet and not self._group.is_broken:
                self._gate.comm.Free()

    # -- what differs from the native backend

    def _reduction(self, op: ReduceOp, dtype: DType) -> Reduction:
        return MpiReduction(super()._reduction(op, dtype), op.kind, dtype)

    def send(self, tensor: Tensor, dst: int, tag: int, timeout: float | None) -> Work[None]:
        self._messenger.check_tag(tag)
        return super().send(tensor, dst, tag, timeout)

    def recv(self, tensor: Tensor, src: int | None, tag: int, timeout: float | None) -> Work[int]:
        self._messenger.check_tag(tag)
        return super().recv(tensor, src, tag, timeout)

    def recv_new(self, src: int | None, tag: int, timeout: float | None) -> Work[Received]:
        self._messenger.check_tag(tag)
        return super().recv_new(src, tag, timeout)

    def send_object(
        self, obj: Any, dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]:
        self._messenger.check_tag(tag)
        return super().send_object(obj, dst, tag, pickle, timeout)

    def recv_object(
        self,
        finish: Callable[[Any, int], T],
        src: int | None,
        tag: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        self._messenger.check_tag(tag)
        return super().recv_object(finish, src, tag, pickle, timeout)

    def open_stream(
        self, peer: int, tag: int, window: int, max_bytes: int, allow_pickle: bool
    ) -> Stream:
        self._messenger.check_tag(tag)
        return super().open_stream(peer, tag, window, max_bytes, allow_pickle)
