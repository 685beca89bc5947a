"""How the members of a group come to share memory at its first operation.

Each member answers in its segment: it publishes the area that it has allocated, or that it has no
room. A member that waits for the answers of others sleeps until a wake-up comes on a stream. Only
neighbours wake each other: two members whose places differ by at most `NEAR`, or by a power of two, as
in Chord (Stoica et al., "Chord: a scalable peer-to-peer lookup service for internet applications",
2001). So many members make N log N connections and not N * N, and news reaches each in log N steps.

A member wakes each neighbour when it has answered, and again when it finds that all members have. It
does so as soon as the two are connected. Invariant: after the last answer every member looks once more.
The member that answers last looks after its answer. A member that finds all answers wakes its
neighbours, which look and do the same. Two neighbours cannot miss each other: the wake-up of the first
opens the connection, and the other answers with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from aiodist.p2p.endpoint import Endpoint
from aiodist.shm.group_area import CHUNK_BYTES, OVERSUBSCRIBED_CHUNK_BYTES, GroupArea
from aiodist.shm.shared_memory import SharedMemory

PATIENCE_SECONDS = 0.2
"""After this long a rank connects to all neighbours, also to those that connect to it first. It also
stops waiting for the room of groups that not all of their ranks have destroyed yet."""

NEAR = 8
"""Members at most so far apart are neighbours: all in a group of up to 17. Each then hears of an error or
a lost member directly from the rank that knows it first."""

ROOM_SECONDS = 5e-4
"""How often to look whether such room has come back, for which no wake-up comes."""

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 1.0, 10.0
"""A sleeper also looks without a wake-up. One may get lost, or the member that it waits for may be gone,
which a connection tells only to that member's neighbours. Each pause is as long as the sleeper has
waited so far, within these bounds: ranks that idle for hours cost nothing."""


class ShmOpening:
    """The opening of one communicator. Belongs to the group's loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        memory: SharedMemory,
        area: int,
        members: Sequence[int],
        neighbours: Sequence[int],
        wake: Callable[[int], None],
    ) -> None:
        """``area``: the id of the members' areas. ``members``: their global ranks. ``neighbours``: those
        of this rank among them. ``wake(rank)`` wakes one of these."""
        self._endpoint = endpoint
        self._memory = memory
        self._area = area
        self._members = members
        self._wake_rank = wake
        self._place = members.index(endpoint.rank)
        self._neighbours = neighbours
        self._not_told_own = list(neighbours)  # that this rank has answered
        self._not_told_all = list(neighbours)  # that all members have answered
        self._patient_until = 0.0
        self.loss: BaseException | None = None
        """Why the areas will never be found: a member is gone that has not answered."""

    def find(self) -> list[GroupArea] | str | None:
        """Allocate this rank's area and look for the others'.

        Returns the areas of all members in their order, once this rank is connected to its neighbours:
        the end of a connection tells at once that a member has died. A text says why the group has no
        areas. None as long as a member has not answered, or a neighbour is not connected, and if
        ``loss``.
        """
        memory = self._memory
        if memory.could_share(self._members):
            memory.allocate_area(
                self._area, patient=self._is_patient, chunk_bytes=self._chunk_bytes
            )
        areas = self._look()
        is_reached = self._reach()
        if isinstance(areas, str):
            self._wake(self._not_told_all)
            return areas
        self._notify(areas is not None)
        if areas is None and not self._is_patient:
            for rank in self.without_answer():
                reach_if_gone(self._endpoint, memory, rank)
        if areas is None and is_reached:
            self.loss = next(filter(None, map(self._error_of, self._members)), None)
        return areas if is_reached else None

    def allocate_area(self) -> None:
        """Allocate this rank's area, for members that may wait for it. Then call `notify_neighbours`."""
        self._memory.allocate_area(self._area, chunk_bytes=self._chunk_bytes)

    def notify_neighbours(self) -> None:
        """Wake the neighbours that do not know yet what this rank knows."""
        self._notify(self._look() is not None)

    @property
    def seconds_to_sleep(self) -> float:
        """When to `find` again if no wake-up comes before."""
        if not self._is_patient:
            return until_next_look(perf_counter() - self._patient_until)
        return self._patient_until - perf_counter() if self._has_answered else ROOM_SECONDS

    def without_answer(self) -> list[int]:
        """Return global ranks of the members that have not answered."""
        return self._memory.without_answer(self._area, self._members)

    # -- inside

    def _look(self) -> list[GroupArea] | str | None:
        """Return what `find` may return, as far as memory tells."""
        if self._memory.could_share(self._members):
            return self._memory.find_areas(self._area, self._members)
        return "not all of its ranks can map each other's memory"

    def _reach(self) -> bool:
        """Connect to the neighbours that this rank dials. Returns whether all that live are connected."""
        endpoint = self._endpoint
        missing = [
            rank
            for rank in self._neighbours
            if not endpoint.connected(rank) and endpoint.error_of(rank) is None
        ]
        for rank in missing:
            if self._dials(rank) or not self._is_patient:
                endpoint.reach(rank)
        return not missing

    def _dials(self, rank: int) -> bool:
        """Return whether this rank makes the connection to ``rank`` first: one of each pair does."""
        return self._members.index(rank) > self._place

    def _notify(self, is_complete: bool) -> None:
        """Wake the neighbours that do not know yet that this rank, or every member, has answered.

        At first this rank connects to no lower rank for that: the lower one connects when it has answered.
        """
        unaware = self._not_told_all if is_complete else self._not_told_own
        if unaware and (is_complete or self._has_answered):
            connected, is_patient = self._endpoint.connected, self._is_patient
            self._wake(
                [
                    rank
                    for rank in unaware
                    if connected(rank) or self._dials(rank) or not is_patient
                ],
                is_complete,
            )

    def _wake(self, ranks: Iterable[int], is_complete: bool = True) -> None:
        for rank in list(ranks):
            if rank in self._not_told_own:
                self._not_told_own.remove(rank)
            if is_complete:
                self._not_told_all.remove(rank)
            self._wake_rank(rank)

    def _error_of(self, rank: int) -> BaseException | None:
        return None if rank == self._endpoint.rank else self._endpoint.error_of(rank)

    @property
    def _has_answered(self) -> bool:
        return self._memory.has_answered(self._area)

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
        oversubscribed = self._endpoint.spin_policy.oversubscribed
        return OVERSUBSCRIBED_CHUNK_BYTES if oversubscribed else CHUNK_BYTES


def until_next_look(waited: float) -> float:
    """Return for how long a sleeper that has waited for ``waited`` seconds sleeps without a wake-up."""
    return min(max(waited, FIRST_LOOK_SECONDS), LAST_LOOK_SECONDS)


def reach_if_gone(endpoint: Endpoint, memory: SharedMemory, rank: int) -> None:
    """Connect to member ``rank`` if it is gone: the failure says whether it has left or died.

    Its end is known to the ranks that are connected to it, and to all if it died and there are heartbeats.
    """
    if memory.is_gone(rank):
        endpoint.reach(rank)
