"""The backend "mpi": every operation by MPI, on CPU tensors and arrays."""

from __future__ import annotations

import asyncio
import os

from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.library import Mpi, check_thread, in_thread, load, translated
from aiodist.backends.mpi.mpi_agreement import MpiAgreement, checks
from aiodist.backends.mpi.mpi_messenger import MpiMessenger
from aiodist.backends.mpi.mpi_operations import MpiOperations
from aiodist.backends.mpi.poller import Poller
from aiodist.backends.mpi.reductions import MpiReduction
from aiodist.backends.native import NativeBackend
from aiodist.backends.polling import awaited
from aiodist.completion import Driver, T
from aiodist.deadline import Deadline
from aiodist.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistBackendError,
    InvalidUsageError,
)
from aiodist.groups.collective_backend import CollectiveBackend, ObjectStream, Start, StreamSettings
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import Message
from aiodist.groups.operation import Collective, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.store.waiting import limit


class MpiBackend(CollectiveBackend):
    """One communicator, made when the group is; operations that start earlier wait for it.

    Checks, staging, objects and what MPI's reductions lack are the native backend's, over MPI's
    messages. A collective that fails on any rank ends the group, unless the ranks disagreed about it:
    MPI cannot take back what has begun.
    """

    name = "mpi"
    why_fixed = (
        "the processes of an MPI job are MPI's for good. Start the job anew, or go on among all of "
        'them by destroy_process_group() and init_process_group("mpi"). A job that is to outlive '
        'its ranks needs backend "aiodist", started by `aiodist run --max-restarts`'
    )

    def __init__(self, group: GroupEngine) -> None:
        self._gate = Gate()
        self._closed = False
        self._loop = group.world.loop
        self._agreement = agreement = MpiAgreement(self._gate, group.size, checks(os.environ))
        self._group = group
        run = MpiOperations(group, self._gate, agreement)
        self._native = NativeBackend(group, run, change=MpiReduction)
        self._spin_policy = group.world.endpoint.spin_policy
        self._messenger = MpiMessenger(group.ranks, self._gate, self._spin_policy)
        group.use_messenger(self._messenger, agreement)
        Driver(self._open(), self._opened).start()

    # -- the communicator

    async def ready(self, deadline: Deadline) -> None:
        """Do as `CollectiveBackend.ready`. Raises CollectiveTimeoutError at the deadline."""
        try:
            async with asyncio.timeout(limit(deadline)):
                await awaited(self._gate.passed())
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
        comm_world, ranks = mpi.COMM_WORLD, self._group.ranks
        world = self._group.world
        if (comm_world.rank, comm_world.size) != (world.rank, world.size):
            raise InvalidUsageError(
                f"MPI has this process as rank {comm_world.rank} of {comm_world.size}, the world as "
                f"rank {world.rank} of {world.size}: backend 'mpi' needs ranks started by mpiexec, "
                "with MPI's own numbers"
            )
        poller = Poller(mpi, self._loop, self._spin_policy)
        if ranks == tuple(range(comm_world.size)):
            comm, request = comm_world.Idup()
            await poller.watch(request, comm)  # MPI writes the handle into it
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
        """Return a communicator of the group's ranks, which are not all. Only they call this."""
        comm_world = mpi.COMM_WORLD
        chosen = comm_world.Get_group().Incl(self._group.ranks)
        try:
            return comm_world.Create_group(chosen, self._group.id % (1 << 15))
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
        self._native.close()
        was_open = self._gate.is_open
        self._gate.shut(DistBackendError(f"group {self._group.group_name!r} is closed"))
        if (
            was_open and not self._gate.mpi.Is_finalized()
        ):  # MPI ends a process that calls it after that
            quiet = self._gate.poller.close()
            leftovers = self._group.is_broken or self._agreement.has_leftovers
            if quiet and not leftovers:
                self._gate.comm.Free()

    def ends_group(self, fingerprint: Fingerprint | None, error: BaseException) -> bool:
        return not (self._agreement.compares and isinstance(error, CollectiveMismatchError))

    # -- operations

    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        if isinstance(operation, Message):
            self._messenger.check_tag(operation.tag)
        return self._native.start(operation, timeout)

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        return self._native.prepare(operation, start)

    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        self._native.check_tensor(tensor, writable=writable)

    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        self._messenger.check_tag(settings.tag)
        return self._native.open_stream(settings)
