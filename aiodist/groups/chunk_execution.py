"""A collective in chunks, carried out at the call, before a context or a record is made for it.

Each rank publishes a slot, as in an operation of one slot (`run_in_slots`). The slot is empty, or says
what is to come. Once the ranks whose chunks this rank reads are there, the algorithm runs until it would
have to wait for long, mostly to its end. If it has to wait, it gets a context and a record, and continues
from the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from aiodist.collectives.schedule import Schedule, ScheduleRun
from aiodist.completion import Pending
from aiodist.groups.operation_shm import NEAR_SECONDS, TURN_SECONDS, OperationShm
from aiodist.groups.slot_execution import SlotExecution
from aiodist.p2p.spin_policy import AT_ONCE_SECONDS, BYTE_SECONDS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Fingerprint
    from aiodist.groups.shm_communicator import ShmCommunicator

CHUNK_SPIN_SECONDS = 5e-3
"""How long it may keep the loop busy, or a thread that drives the loop, before others have a turn."""

caller_overlaps: ContextVar[bool] = ContextVar("aiodist_hurried", default=False)
"""Whether the caller has something else to do meanwhile: then it is no longer than for others."""

Given = TypeVar("Given", contravariant=True)


class ChunkPlan(Protocol[Given]):
    """What equal calls of such a collective have in common."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def head(self) -> int:
        """Bytes of the slot that each rank publishes before; mostly 0."""
        ...

    @property
    def meets(self) -> Sequence[tuple[int, int]]:
        """The other ranks that have to be there, each with the bytes of its slot: `head`."""
        ...

    def fill_head(self, slot: memoryview, given: Given) -> None:
        """Write what this rank publishes. May be done again, as `ShmCommunicator.enter` does."""
        ...

    def agrees(self, slots: Sequence[memoryview], given: Given) -> bool:
        """Return whether what those have published, by rank, fits what is ``given``."""
        ...

    def schedule(self, shm: OperationShm, given: Given) -> Schedule:
        """Return what this rank does on a shared-memory context where they meet."""
        ...


class DirectPlan(SlotExecution[Given], ChunkPlan[Given], Protocol[Given]):
    """Either of both; `in_chunks` says which."""

    @property
    def in_chunks(self) -> bool: ...


class Unfinished(NamedTuple):
    """An operation that has to wait now."""

    shm: OperationShm
    run: ScheduleRun
    waiting: Pending[None]

    async def rest(self, owner: object) -> None:
        """Carry out what is left. ``owner``: of its memory, which is held until the end."""
        waiting: Pending[None] | None = self.waiting
        try:
            while waiting is not None:
                await waiting
                waiting = self.run.go_on()
        except BaseException:
            self.run.drop()
            raise
        del owner


class ChunkExecution(Generic[Given]):
    """A `SlotExecution` of those slots, behind which the whole operation runs; ``begun``: if not to its
    end.
    """

    __slots__ = (
        "_communicator",
        "_run",
        "_sequence",
        "_shm",
        "_what",
        "begun",
        "fingerprint",
        "knows_all",
        "nbytes",
        "reads",
        "room",
    )

    pieces: Sequence[slice] = ()
    spin_bytes = int((NEAR_SECONDS - AT_ONCE_SECONDS) / BYTE_SECONDS)

    def __init__(
        self, communicator: ShmCommunicator, sequence: int, what: ChunkPlan[Given]
    ) -> None:
        self.begun: Unfinished | None = None
        self.fingerprint = what.fingerprint
        self.reads = what.meets
        self.knows_all = len(self.reads) == communicator.size - 1
        self.nbytes = self.room = what.head
        self._communicator = communicator
        self._sequence = sequence
        self._what = what
        self._shm: OperationShm | None = None
        self._run: ScheduleRun | None = None

    def fill(self, slot: memoryview, given: Given) -> None:
        self._what.fill_head(slot, given)

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Do nothing: the slot has no pieces."""

    finish_piece = fill_piece

    def go_ahead(self, given: Given) -> None:
        if self.nbytes:  # what is done depends on what the others have published
            return
        self._shm = shm = OperationShm(self._communicator, self._sequence)
        self._run = run = ScheduleRun(shm, self._what.schedule(shm, given))
        run.begin()

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Return whether the operation has ended."""
        if not self._what.agrees(slots, given):
            return False
        shm, run = self._shm, self._run
        if shm is None or run is None:
            shm = OperationShm(self._communicator, self._sequence)
            run = ScheduleRun(shm, self._what.schedule(shm, given))
        shm.begin_alone(
            TURN_SECONDS if caller_overlaps.get() else CHUNK_SPIN_SECONDS, len(self.reads)
        )
        waiting = run.go_on()
        if waiting is None:
            return True
        self.begun = Unfinished(shm, run, waiting)
        return False
