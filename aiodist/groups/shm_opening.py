"""How the members of a group come to share memory at its first operation.

Each member lays out an area in its segment, or says that it has no room, and then wakes the others by
a bell on the stream. A member that waits for the areas sleeps between these bells. Invariant: a member
that has said what room it has rings for every other member once, as soon as the two are connected. Two
members cannot miss each other: each has said so before its bell leaves, and looks again when the
other's bell comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from aiodist.p2p.endpoint import Endpoint
from aiodist.shm.group_area import CHUNK_BYTES, CROWDED_CHUNK_BYTES, GroupArea
from aiodist.shm.shared_memory import SharedMemory

PATIENCE_SECONDS = 0.2
"""After this long a rank makes the connections itself that are the others' to make. It also stops
waiting for the room of groups that not all of their ranks have destroyed yet."""

ROOM_SECONDS = 5e-4
"""How often to look whether such room has come back; no bell tells."""

BACKSTOP_SECONDS = 10.0
"""A sleeper looks this often without a bell: should one ever get lost, no rank hangs."""


class ShmOpening:
    """The opening of one communicator. Belongs to the group's loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        memory: SharedMemory,
        area: int,
        members: Sequence[int],
        ring: Callable[[int], None],
    ) -> None:
        """``area``: the id of the members' areas. ``members``: their global ranks. ``ring(rank)``
        wakes one of them."""
        self._endpoint = endpoint
        self._memory = memory
        self._area = area
        self._members = members
        self._ring_for = ring
        self._place = members.index(endpoint.rank)
        self._unrung = [rank for rank in members if rank != endpoint.rank]
        self._patient_until = 0.0
        self.loss: BaseException | None = None
        """Why the areas will never be found: a member is gone that has not said what room it has."""

    def find(self) -> list[GroupArea] | str | None:
        """Lay out this rank's area and look for the others'.

        Returns the areas of all members in their order, once this rank is connected to all of them:
        the end of a connection tells that a member has died. A text says why the group has no areas.
        None as long as a member has not said what room it has, or is not connected, and if ``loss``.
        """
        memory = self._memory
        if memory.could_share(self._members):
            memory.lay_out(self._area, patient=self._is_patient, chunk_bytes=self._chunk_bytes)
            areas = memory.look(self._area, self._members)
        else:
            areas = "not all of its ranks can map each other's memory"
        is_reached = self._reach()
        if isinstance(areas, str):
            self._ring(self._unrung)
            return areas
        self.tell()
        if areas is None and is_reached:
            self.loss = next(filter(None, map(self._error_of, self._members)), None)
        return areas if is_reached else None

    def lay_out(self) -> None:
        """Say what room this rank has, for members that may wait to hear it; `tell` is to follow."""
        self._memory.lay_out(self._area, chunk_bytes=self._chunk_bytes)

    def tell(self) -> None:
        """Ring for the members that have not heard yet that this rank has said what room it has.

        A lower rank is not connected to for that at first: it connects to this one when it waits.
        """
        if self._unrung and self._has_said:
            connected, is_patient = self._endpoint.connected, self._is_patient
            self._ring(
                rank
                for rank in self._unrung
                if connected(rank) or self._dials(rank) or not is_patient
            )

    @property
    def seconds_to_sleep(self) -> float:
        """When to `find` again if no bell comes before."""
        if not self._is_patient:
            return BACKSTOP_SECONDS
        return self._patient_until - perf_counter() if self._has_said else ROOM_SECONDS

    def silent(self) -> list[int]:
        """Return global ranks of the members that have not said what room they have."""
        return self._memory.silent(self._area, self._members)

    # -- inside

    def _reach(self) -> bool:
        """Connect to the members that this rank dials. Returns whether all that live are connected."""
        endpoint = self._endpoint
        missing = [
            rank
            for rank in self._members
            if rank != endpoint.rank
            and not endpoint.connected(rank)
            and endpoint.error_of(rank) is None
        ]
        for rank in missing:
            if self._dials(rank) or not self._is_patient:
                endpoint.reach(rank)
        return not missing

    def _dials(self, rank: int) -> bool:
        """Return whether this rank makes the connection to ``rank`` first: one of each pair does."""
        return self._members.index(rank) > self._place

    def _ring(self, ranks: Iterable[int]) -> None:
        for rank in list(ranks):
            self._unrung.remove(rank)
            self._ring_for(rank)

    def _error_of(self, rank: int) -> BaseException | None:
        return None if rank == self._endpoint.rank else self._endpoint.error_of(rank)

    @property
    def _has_said(self) -> bool:
        return self._memory.is_settled(self._area)

    @property
    def _is_patient(self) -> bool:
        """Whether the first operation has not waited for long."""
        now = perf_counter()
        if not self._patient_until:
            self._patient_until = now + PATIENCE_SECONDS
        return now <= self._patient_until

    @property
    def _chunk_bytes(self) -> int:
        """How large a chunk is, where there is room."""
        crowded = self._endpoint.spin_policy.crowded
        return CROWDED_CHUNK_BYTES if crowded else CHUNK_BYTES
