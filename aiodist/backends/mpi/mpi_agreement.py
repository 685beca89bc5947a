"""Run the collectives of one communicator in turn, and only if all ranks agree about them.

MPI matches the collectives of a communicator only by their order, and compares nothing. In Open
MPI, for example, ranks that disagree about a length corrupt each other's memory. So a collective
begins when the one before it has ended here, and with a sum of two numbers over all ranks. The
first is a hash of what the ranks must agree on: all are equal if the sum is the group's size times
one's own. The second is the lengths that a rank sends less those it expects, each times a number
for the pair: the sum must be zero.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from aiodist.backends.mpi.gate import Gate
from aiodist.collectives.barrier_dissemination import barrier_dissemination
from aiodist.collectives.channel import Channel
from aiodist.completion import Pending
from aiodist.errors import CollectiveMismatchError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.switches import switch_from

VARIABLE = "AIODIST_MPI_CHECK"
"""0: do not compare; ranks that disagree then hang, or write where they should not."""

OF_LENGTHS = frozenset(
    {"all_gather", "all_gather_coalesced", "all_to_all", "gather", "reduce_scatter", "scatter"}
)
"""Operations whose ranks have to agree on more than a fingerprint: they `compare` themselves."""

_MASK = (1 << 64) - 1


def checks(environ: Mapping[str, str]) -> bool:
    """Return whether ranks compare. Raises InvalidUsageError for an invalid value."""
    return switch_from(VARIABLE, environ) is not False


class MpiAgreement:
    """The order of a group's collectives; a `groups.messaging.CollectiveGate`."""

    def __init__(self, gate: Gate, size: int, enabled: bool) -> None:
        self._gate = gate
        self._size = size
        self.compares = enabled and size > 1
        """Whether no collective begins before all ranks agree about it."""
        self.has_leftovers = False
        """Whether messages about a disagreement may be left in the communicator."""
        self._last: Pending[None] | None = None
        self._turns: dict[int, Pending[None]] = {}

    async def enter(self, context: CollectiveContext) -> None:
        before, mine = self._last, Pending[None]()
        self._last = self._turns[context.sequence] = mine
        if before is not None:
            await before
        await self._gate.passed()
        if context.operation not in OF_LENGTHS:
            await self.compare(context)

    def leave(self, context: CollectiveContext) -> None:
        mine = self._turns.pop(context.sequence)
        if mine is self._last:
            self._last = None
        mine.complete(None)

    def disagreed(self, context: CollectiveContext) -> None:
        # Invariant: one rank found it out by its sum, so every rank has begun that sum, and nothing more.
        # So MPI will match the next collective of each rank.
        if self.compares:
            self.has_leftovers = True
            self.leave(context)

    async def compare(self, context: Channel, known: Sequence[int] = (), balance: int = 0) -> None:
        """Raise CollectiveMismatchError, on all ranks, unless all pass the same ``known``.

        ``balance``: this rank's share of what has to add up to zero, see `sending`.
        """
        if not self.compares or not isinstance(context, CollectiveContext):
            return
        mine = _hash(context.meta, known)
        sums = np.array([mine, balance & _MASK], np.uint64)
        mpi, comm = self._gate.mpi, self._gate.comm
        request = comm.Iallreduce(mpi.IN_PLACE, [sums, mpi.UINT64_T], mpi.SUM)
        # Invariant: where one rank has its sum, all have come. So a rank that has left has never come, or
        # the sum is a moment away.
        context.meets = True
        try:
            await self._gate.poller.watch(request, sums)
        finally:
            context.meets = False
        if int(sums[0]) == mine * self._size & _MASK and not sums[1]:
            return
        await barrier_dissemination(context)  # its messages show which rank called what
        raise CollectiveMismatchError(
            f"ranks disagree about {context.describe()}: in how long the parts of the ranks are, or in "
            "what they call",
            operation=context.operation,
            group=context.group_name,
            sequence=context.sequence,
        )


def sending(source: int, target: int, nbytes: int) -> int:
    """Return what ``nbytes`` that ``source`` sends add to the balance. ``target`` subtracts them."""
    weight = (source * 0x9E3779B97F4A7C15 + target * 0xC2B2AE3D27D4EB4F + 1) * 0xD6E8FEB86659FD93
    return ((weight ^ (weight >> 32)) | 1) * nbytes & _MASK


def _hash(meta: bytes, known: Sequence[int]) -> int:
    data = meta + struct.pack(f"<{len(known)}Q", *known)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
