"""The shared-memory communicator of a group: its areas, which operation has it, and how its ranks wake
each other.

Collectives of one group run on the communicator one after the other, in the order in which they started,
which is the same on all ranks. So two slots a rank are enough, and no two ranks wait for each other.
`ShmCollective` is the one operation that has it.

To wait is to look at a word in a peer's area. A rank that has looked for a while writes into its own area
that it sleeps, and over which word of which rank. A rank that raises a word looks for sleepers and rings
the doorbell of each. A store may be delayed behind the load that follows it, so the two ranks
can miss each other. So the sleeper looks again after a millisecond, when every store has long arrived.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from aiodist.completion import Pending
from aiodist.groups.group_facts import GroupFacts
from aiodist.groups.naming import digest, neighbours
from aiodist.groups.shm_opening import NEAR, ShmOpening, reach_if_gone, until_next_look
from aiodist.groups.shm_words import STEP_BITS, Wait, stray
from aiodist.p2p.spin_policy import LOOK_AGAIN_SECONDS, SUSPICION_SECONDS, BoundedSpin, SpinPolicy
from aiodist.shm.doorbell import Doorbell
from aiodist.shm.group_area import ASLEEP, PROGRESS, SLOTS, AreaShape
from aiodist.shm.shared_memory import SharedMemory

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Words

log = logging.getLogger("aiodist")

_RANK_BITS = 16
_WHOM = (1 << 31) - 1
"""In the word of a sleeper: the word that it sleeps over, and behind it that word's rank."""
_MOST_NAPS = (1 << 32) - 1
"""The number of a sleep fills the rest of that word, and begins anew beyond this."""
_THREAD = 1 << 31
"""In the word of a sleeper: a blocked thread sleeps, which drives the engine, and not the loop."""


class SharingGroup(GroupFacts, Protocol):
    """What a communicator needs of its group; `GroupEngine` is one."""

    def wake(self, rank: int) -> None:
        """Wake group rank ``rank`` by a frame, which arrives behind all messages before it."""

    def next_turn(self) -> Pending[None]:
        """Return what is done in the next turn of the event loop."""


class CurrentOperation(Protocol):
    """An operation that has the communicator to itself; `ShmCollective` is one."""

    @property
    def end(self) -> int:
        """The progress that its end makes."""

    @property
    def context(self) -> object:
        """The `WaitingOperation` that has entered the communicator by it."""

    def close(self) -> None:
        """The operation is over."""

    def fell_asleep(self) -> None:
        """Note that the operation sleeps until another rank goes on."""


class WaitingOperation(Protocol):
    """An operation that waits for the communicator; `CollectiveContext` is one."""

    def enter(self, communicator: ShmCommunicator) -> None:
        """Set ``communicator.current``: the operation has the communicator to itself from now on."""


class ShmCommunicator:
    """The shared memory of a group, or of its ranks on one host. Belongs to the group's loop.

    The first operation opens it.
    """

    def __init__(
        self,
        group: SharingGroup,
        memory: SharedMemory,
        incarnation: int,
        group_ranks: Sequence[int] | None = None,
    ) -> None:
        """``group_ranks``: the members that share, as ranks of the group; all where None."""
        self.group = group
        self.group_ranks = range(len(group.ranks)) if group_ranks is None else group_ranks
        """By rank of the communicator: that member's rank in the group."""
        self.members = [group.ranks[number] for number in self.group_ranks]
        """By rank of the communicator: that member's global rank."""
        self.rank = self.members.index(group.global_rank)
        self.size = len(self.members)
        self.words: list[memoryview] = []
        self.mine: memoryview = memoryview(b"")
        self.shape = AreaShape(0, 0)
        self.room = -1
        """Bytes of a slot; -1 before the areas are known."""
        self.progress = 0
        self.met = -1
        """The last operation in which this rank has seen all others in their slots."""
        self.slot_used = [0] * SLOTS  # the progress that frees each slot
        self.chunks_used = 0  # the same of the chunks
        self._chunks_used_before = 0  # and of what was in them before that
        self.unread: list[tuple[int, tuple[int, int]] | None] = [None] * SLOTS
        """By slot: an operation, and its fingerprint, in which this rank published, reading not all.
        Peers may not have come to it yet."""
        self.spin_policy = SpinPolicy(_no_turns)
        self.spin_policy.neighbours = group.endpoint.spin_policy.neighbours
        """``active`` once it is known that no other rank lives in this process."""
        self.spin = BoundedSpin(self.spin_policy)
        self.matcher = group.endpoint.inbox.matcher
        """Where messages would be that came for an operation of this group."""
        self._memory: SharedMemory | None = memory
        self._id = digest(f"{group.id} {incarnation}") or 1  # of the members' areas
        self.neighbours = [self.members[rank] for rank in neighbours(self.rank, self.size, NEAR)]
        """Global ranks of the members to which this rank is connected."""
        self._opening = ShmOpening(
            group.endpoint, memory, self._id, self.members, self.neighbours, self._wake_member
        )
        self.peers: list[tuple[int, memoryview]] = []
        self.slots: list[list[memoryview]] = []  # by their number, and by rank
        self.chunks: list[list[memoryview]] = []  # by rank
        self._woken_naps = [0] * self.size
        self._naps = 0
        self._fence = threading.Lock()
        self.current: CurrentOperation | None = None
        self.queue: deque[tuple[WaitingOperation, Pending[None]]] = deque()
        self._admitting = False
        self._wait: Wait | None = None
        self._slept_over: Wait | None = None  # by a blocked thread, if still waited for
        self._arming = False
        self._since = 0.0  # the wait began
        self._turns = 0  # of the loop, in which this wait was looked for
        self._timer: asyncio.TimerHandle | None = None

    # -- one operation at a time

    @property
    def is_free(self) -> bool:
        """Whether an operation may enter at once; else see `admitted`."""
        return self.current is None and not self.queue and bool(self.words)

    def admitted(self, context: WaitingOperation) -> Pending[None]:
        """Return what is done when ``context`` has entered, or when `is_off`."""
        pending: Pending[None] = Pending()
        self.queue.append((context, pending))
        self._admit()
        return pending

    def leave(self, context: WaitingOperation) -> None:
        """Free the communicator: ``context`` has ended, well or badly, or was never admitted."""
        current = self.current
        if current is None or current.context is not context:
            self.queue = deque(entry for entry in self.queue if entry[0] is not context)
            return
        self.current = None
        self.forget_wait()
        current.close()
        self.advance(current.end)
        if self.queue:
            self._admit()

    def _admit(self) -> None:
        # Not by recursion: each of many in the queue may end as soon as it begins.
        if self._admitting:
            return
        self._admitting = True
        try:
            while self.queue and self.current is None and self._is_open():
                context, pending = self.queue.popleft()
                if self._memory is not None:
                    context.enter(self)
                pending.complete(None)
        finally:
            self._admitting = False

    def _is_open(self) -> bool:
        """Return whether the members' areas are known, or known to be missing."""
        memory = self._memory
        if self.words or memory is None:
            return True
        areas = self._opening.find()
        if areas is None:
            if self._opening.loss is not None and self.queue:
                self.queue.popleft()[1].fail(self._opening.loss)
            self._look_again(self._opening.seconds_to_sleep, self._admit)
            return False
        if isinstance(areas, str):
            log.info("group %r uses streams alone: %s", self.group.group_name, areas)
            memory.never_shared(self._id)
            memory.release_area(self._id, self.members, all_listed=False)
            self._memory = None
            return True
        self.words = [area.words for area in areas]
        self.mine = self.words[self.rank]
        self.shape = reduce(AreaShape.common, (area.shape for area in areas))
        self.room = room = self.shape.slot_bytes
        self.slots = [[area.slots[slot][:room] for area in areas] for slot in range(SLOTS)]
        self.chunks = [area.chunks for area in areas]
        self.peers = [(rank, w) for rank, w in enumerate(self.words) if rank != self.rank]
        self.spin_policy.active = not self.group.endpoint.shares_process
        self.spin_policy.oversubscribed = self.group.endpoint.spin_policy.oversubscribed
        return True

    def allocate_area(self) -> None:
        """Say what room this rank has, for those that may wait to hear it."""
        if self.is_opening:
            self._opening.allocate_area()
            # The wake-ups go behind what the operation sends: a member that is in another one, which
            # could begin and end in memory, hears of the disagreement first.
            self.group.world.loop.call_soon(self._notify_neighbours)

    @property
    def is_off(self) -> bool:
        """Whether the ranks turned out to share no memory."""
        return self._memory is None

    def close(self) -> None:
        """The group is destroyed. Idempotent."""
        self.forget_wait()
        memory, self._memory = self._memory, None
        opened = bool(self.words)
        self.room = -1
        self.words = []
        self.peers = []
        self.slots = []
        self.chunks = []
        self.mine = memoryview(b"")
        if memory is not None:
            memory.release_area(self._id, self.members, all_listed=opened)

    def left_unread(self) -> tuple[int, int, Words] | None:
        """An operation that this rank left without reading all slots, and another one in its place:
        its number, the global rank that put that up, and its fingerprint."""
        for unread in self.unread:
            for rank, words in self.peers if unread is not None else ():
                if unread is not None and (theirs := stray(words, *unread)) is not None:
                    return unread[0], self.members[rank], theirs
        return None

    def use_chunks(self, end: int) -> None:
        """Note that the operation up to ``end`` writes chunks from now on."""
        if self.chunks_used != end:
            self._chunks_used_before, self.chunks_used = self.chunks_used, end

    def chunks_before(self, end: int) -> int:
        """Return the progress that frees the chunks for the operation up to ``end``. It may have begun."""
        return self._chunks_used_before if self.chunks_used == end else self.chunks_used

    # -- flags

    def advance(self, progress: int) -> None:
        """Let go of everything below ``progress``."""
        if progress > self.progress and self.words:
            self.progress = self.mine[PROGRESS] = progress
            for _, words in self.peers:
                if words[ASLEEP]:
                    self.wake(PROGRESS)
                    break

    def _notify_neighbours(self) -> None:
        if self.is_opening:
            self._opening.notify_neighbours()

    def _wake_member(self, global_rank: int) -> None:
        self.group.wake(self.group_ranks[self.members.index(global_rank)])

    def wake(self, word: int) -> None:
        """Wake the ranks that sleep over ``word``, which this rank has raised."""
        for rank, words in self.peers:
            nap = words[ASLEEP]
            if (
                nap
                and nap & _WHOM == word << _RANK_BITS | self.rank + 1
                and nap != self._woken_naps[rank]
            ):
                self._woken_naps[rank] = nap
                memory = self._memory
                if memory is None or not memory.ring(
                    self.members[rank], self.group.id, bool(nap & _THREAD)
                ):
                    self.group.wake(self.group_ranks[rank])

    # -- a blocked thread that drives the engine, sleeps by itself, and is woken by the rank it waits for

    @property
    def doorbell(self) -> Doorbell:
        """What the other rank rings."""
        assert self._memory is not None  # an operation waits in it
        return self._memory.thread_bell

    def look(self) -> bool:
        """Go on with the operation if it can.

        Returns whether it did, or waits for another word than at `fall_asleep`: the loop went on with it.
        """
        slept_over = self._slept_over
        self.poll()
        return self._wait is not slept_over

    def fall_asleep(self) -> bool:
        """Note for the other ranks that a thread sleeps here. Returns False if it must not sleep now."""
        wait = self._slept_over = self._wait
        if wait is None:  # for a turn of the loop, or to be admitted
            return False
        if not wait.asleep:
            wait.asleep = True
            if self.current is not None:
                self.current.fell_asleep()
        self._store_nap(wait, _THREAD)
        self.poll()
        return self._wait is wait

    def suspect(self) -> None:
        """Look whether the rank that is waited for is gone: the thread has slept for long."""
        wait, memory = self._wait, self._memory
        if wait is not None and memory is not None:
            reach_if_gone(self.group.endpoint, memory, self.members[wait.rank])

    # -- waiting

    def wait(self, wait: Wait) -> None:
        """Let the operation wait for ``wait`` from now on."""
        self._wait = wait
        self._turns = 0
        self._since = perf_counter()
        if not self._arming:
            self._arming = True
            self.group.world.loop.call_soon(self._fall_asleep)

    def forget_wait(self) -> None:
        """Let the operation wait no more."""
        if self._wait is not None and self._wait.asleep:
            self.mine[ASLEEP] = 0
        self._wait = self._slept_over = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def poll(self) -> None:
        """Look whether what is waited for has come; if so, the operation goes on, in here."""
        wait = self._wait
        if wait is None:
            if self.queue and self.current is None:
                self._admit()
        elif wait.is_over():
            self.spin_policy.learn(perf_counter() - self._since)
            self.forget_wait()
            wait.complete(None)

    def on_doorbell(self) -> None:
        """A member has said what room it has, or raised what this rank sleeps over; perhaps not far
        enough yet."""
        if self.is_opening:
            # In the next turn: messages of the same read come first, as above.
            self.group.world.loop.call_soon(self._notify_neighbours)
            self.group.world.loop.call_soon(self.poll)
            return
        self.poll()
        wait = self._wait
        if wait is not None and wait.asleep:
            self._nap(wait)  # each nap gets one WAKE frame

    @property
    def is_opening(self) -> bool:
        """Whether the members' areas are not known yet: a member has not begun an operation."""
        return not self.words and self._memory is not None

    def passed(self, rank: int) -> int:
        """Return the last operation that global rank ``rank`` has ended, as its area says.

        It may be gone. Returns -1 if it has ended no operation, or if that is not known.
        """
        if not self.words or rank not in self.members:
            return -1
        progress = self.words[self.members.index(rank)][PROGRESS]
        return max(-1, (progress + 1 >> STEP_BITS) - 2)  # the number of operation 0 is 1 there

    def waiting_for(self) -> list[int]:
        """Return global ranks without which the operation, or the first one of the group, cannot go on."""
        wait = self._wait  # once: it may end meanwhile, in another thread
        if wait is not None:
            return [self.members[wait.rank]]
        if self._memory is not None and not self.words:
            return self._opening.without_answer()
        return []

    def _fall_asleep(self) -> None:
        self._arming = False
        self.poll()
        wait = self._wait
        # Invariant: one callback at most is scheduled. A wait that began in `poll` has scheduled its own.
        if wait is None or wait.asleep or self._arming:
            return
        spin_policy, now = self.spin_policy, perf_counter()
        if spin_policy.active and now - self._since < spin_policy.window:
            self._arming = True
            spin_policy.neighbours.move_to_idle_core(now)
            spin_policy.yield_core(self._turns)
            self._turns += 1
            self.group.world.loop.call_soon(self._fall_asleep)
            return
        if self.current is not None:
            self.current.fell_asleep()
        wait.asleep = True
        self._nap(wait)

    def _nap(self, wait: Wait) -> None:
        self._store_nap(wait)
        self.poll()
        if self._wait is wait:
            self._look_again(LOOK_AGAIN_SECONDS, self._look)

    def _store_nap(self, wait: Wait, thread: int = 0) -> None:
        self._naps = self._naps + 1 & _MOST_NAPS
        whom = wait.word << _RANK_BITS | wait.rank + 1
        self.mine[ASLEEP] = self._naps << 32 | thread | whom
        self._settle()

    def _look(self) -> None:
        wait = self._wait
        self.poll()
        if wait is not None and self._wait is wait:
            self._look_again(SUSPICION_SECONDS, self._suspect)

    def _suspect(self) -> None:
        wait = self._wait
        self.poll()
        if wait is not None and self._wait is wait:
            self.suspect()
            self._look_again(until_next_look(perf_counter() - self._since), self._suspect)

    def _look_again(self, seconds: float, look: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.group.world.loop.call_later(seconds, look)

    def _settle(self) -> None:
        # An atomic instruction: what was stored before is visible before anything is loaded after.
        with self._fence:
            pass


def _no_turns(_: Callable[[], None]) -> None:
    """Keep no loop awake: the communicator does that itself."""
