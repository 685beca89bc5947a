"""The ranks of one host: the real engine of a group each, over modelled memory, doorbells and loops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import GroupSpec
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.observe.recorder import Recorder
from aiodist.p2p.inbox import Inbox
from aiodist.p2p.spin_policy import DRIVE_SECONDS, SHORTEST, SpinPolicy
from aiodist.shm.group_area import AreaShape, GroupArea
from aiodist.sync.blocked_caller import BlockedCaller
from aiodist.types import Backend
from tests.interleavings.clock import Clock
from tests.interleavings.memory import Fence, Segment
from tests.interleavings.operations import Begun
from tests.interleavings.scheduler import Scheduler, Timer

Run = Callable[[int, Clock], None]
"""Runs some ranks in the order that a seed draws."""

SHAPE = AreaShape(chunk_bytes=256, depth=2, slot_bytes=192)
"""A few hundred bytes go in chunks, and these are used again at once."""


class Loop:
    """An event loop that turns when its rank says so."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.ready: deque[Callable[[], object]] = deque()
        self._scheduler = scheduler

    def time(self) -> float:
        return self._scheduler.clock.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.ready.append(partial(callback, *args))

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        def call() -> None:
            if not timer.is_cancelled:  # perhaps after its time, and before the loop's turn
                callback(*args)

        timer = self._scheduler.call_later(seconds, partial(self.call_soon, call))
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)


class ThreadBell:
    """The doorbell of a blocked thread. The loop's thread turns the loop while the other one sleeps."""

    def __init__(self, rank: Rank) -> None:
        self.is_rung = False
        self._rank = rank

    def wait(self, seconds: float) -> bool:
        """Return whether it was rung, or False after ``seconds`` and when the operation has ended."""
        rank = self._rank
        timer = rank.scheduler.call_later(seconds, lambda: None)
        rank.turn_until(lambda: self.is_rung or timer.is_over or rank.awaited.is_completed())
        timer.cancel()
        is_rung, self.is_rung = self.is_rung, False
        return is_rung


class RankMemory:
    """`SharedMemory` of one rank: all areas are laid out."""

    def __init__(self, rank: Rank) -> None:
        self.thread_bell = ThreadBell(rank)
        self._rank = rank

    def could_share(self, members: Sequence[int]) -> bool:
        return True

    def allocate_area(self, area: int, *, patient: bool = True, chunk_bytes: int = 0) -> None:
        pass

    def find_areas(self, area: int, members: Sequence[int]) -> list[GroupArea]:
        rank, segments = self._rank.number, self._rank.host.segments
        return [GroupArea(segment.seen_by(rank), SHAPE) for segment in segments]  # type: ignore[arg-type]

    def has_answered(self, area: int) -> bool:
        return True

    def is_gone(self, rank: int) -> bool:
        return False

    def ring(self, rank: int, group: int, thread: bool) -> bool:
        """Write into a pipe: the system's call orders stores, too."""
        self._rank.settle()
        other = self._rank.host.ranks[rank]
        if thread:
            other.memory.thread_bell.is_rung = True
        else:
            other.is_rung = True
        return True


class RankEndpoint:
    """`Endpoint` of one rank. What it tells another rank is a callback of that one's loop."""

    def __init__(self, rank: Rank, shares_process: bool) -> None:
        self.rank = rank.number
        self.shares_process = shares_process
        self.spin_policy = SpinPolicy(rank.loop.call_soon)
        self.inbox = Inbox(len(rank.host.segments), lambda key: False, lambda *message: None)
        self._host = rank.host

    def connected(self, rank: int) -> bool:
        return True

    def error_of(self, rank: int) -> None:
        return None

    def wake(self, rank: int, group: int) -> None:
        other = self._host.ranks[rank]
        other.loop.call_soon(other.communicator.on_doorbell)

    def send_fingerprint(self, rank: int, group: int, sequence: int, meta: bytes) -> None:
        other = self._host.ranks[rank]
        other.loop.call_soon(other.engine.fingerprint_arrived, sequence, self.rank, meta)


class Handoff:
    """`LoopHandoff` where one thread drives the loop at a time, since all are in one thread."""

    def __init__(self) -> None:
        self.sleeper: object = None
        self.interrupts = SimpleNamespace(hold=lambda: False)

    def take(self) -> bool:
        return True

    def give_back(self) -> None:
        pass

    resume = give_back

    def abandon(self, held: bool) -> None:
        pass


class Rank:
    """One rank."""

    def __init__(self, host: Host, number: int, *, blocks: bool, spins: bool) -> None:
        """``blocks``: it uses the blocking API. ``spins``: each rank has a core."""
        self.host = host
        self.number = number
        self.scheduler = host.scheduler
        self.loop = Loop(host.scheduler)
        self.memory = RankMemory(self)
        self.is_rung = False
        self.has_ended = False
        self.awaited: Any = None
        self._blocks = blocks
        endpoint = RankEndpoint(self, shares_process=not spins)
        world: Any = SimpleNamespace(
            rank=number,
            loop=self.loop,
            endpoint=endpoint,
            recorder=Recorder(16),
            as_its_loop=lambda function, *args: function(*args),
            announce=self._announce,
        )
        members = range(len(host.segments))
        self.engine = engine = GroupEngine(
            world, GroupSpec("group", members, Backend("aiodist"), math.inf)
        )
        engine.backend = SimpleNamespace(ends_group=lambda *_: False)  # type: ignore[assignment]
        memory: Any = self.memory
        self.communicator = engine.communicator = ShmCommunicator(engine, memory, 0)
        self.communicator._fence = Fence(host.scheduler.memory, number)  # type: ignore[assignment]

    def start(self, begun: Begun) -> Any:
        """Start a collective, as the native backend does. Returns its work; None if it has ended."""
        engine, plan, given = self.engine, begun.plan, begun.given

        async def body(context: CollectiveContext) -> None:
            assert context.shm is not None
            fits = plan.room <= self.communicator.room
            await context.shm.run(plan.slots if fits else plan.chunks, given)

        started = engine.start_plan(plan, given)
        if started is None:
            started = engine.collective(plan.fingerprint, body, shares=True)
        if isinstance(started, tuple):
            return None
        started.is_completed()  # it is asked for, so it does not warn if the run fails
        return started

    def finish(self, work: Any) -> None:
        """Wait for the end of ``work``, and raise its error."""
        self.awaited = work
        if work is None:
            return
        if not work.is_completed() and not work._spin(DRIVE_SECONDS if self._blocks else SHORTEST):
            loop: Any = self.loop
            handoff: Any = Handoff()
            caller = BlockedCaller.of(work, loop, handoff) if self._blocks else None
            if caller is not None:
                caller.acquire()
        self.turn_until(work.is_completed)
        work.result()

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until ``condition()`` holds."""
        while not condition():
            if self.loop.ready:
                self.loop.ready.popleft()()
            elif self.is_rung:
                self.is_rung = False
                self.communicator.on_doorbell()
            else:
                self.scheduler.sleep_until(lambda: self.loop.ready or self.is_rung or condition())

    def settle(self) -> None:
        """Let all ranks see what this one has stored."""
        self.scheduler.memory.settle(self.number)

    def __str__(self) -> str:
        wait = self.communicator._wait
        what = "waits for no word"
        if wait is not None:
            what = f"waits for word {wait.word} of rank {wait.rank}, asleep: {wait.asleep}"
        return (
            f"rank {self.number}: {self.engine.n_started} started, progress "
            f"{self.communicator.progress:#x}, blocks: {self._blocks}, ended: {self.has_ended}, {what}"
        )

    def _announce(
        self, group: object, sequence: int, error: Any, ranks: Sequence[int] | None = None
    ) -> None:
        for other in self.host.ranks:
            if other is not self:
                other.loop.call_soon(other.engine.failed_elsewhere, sequence, error.again())


class Host:
    """Some ranks, and the memory that they share."""

    def __init__(self, scheduler: Scheduler, n_ranks: int) -> None:
        draw, memory = scheduler.random, scheduler.memory
        scheduler.clock.tick = draw.choice([1e-6, 2e-5, 1e-3])
        spins = draw.random() < 0.5
        self.scheduler = scheduler
        self.segments = [Segment(memory, rank, SHAPE.nbytes) for rank in range(n_ranks)]
        self.ranks: list[Rank] = []
        for rank in range(n_ranks):
            self.ranks.append(Rank(self, rank, blocks=draw.random() < 0.4, spins=spins))

    def run(self, program: Callable[[Rank], None]) -> None:
        """Run ``program(rank)`` on all ranks. A rank whose program has ended turns its loop on."""

        def body(rank: Rank) -> None:
            program(rank)
            rank.has_ended = True
            rank.turn_until(lambda: all(other.has_ended for other in self.ranks))

        for rank in self.ranks:
            self.scheduler.spawn(partial(body, rank))
        self.scheduler.run()


def run(
    seed: int,
    n_ranks: int,
    clock: Clock,
    program: Callable[[Rank], None],
    what: object,
    patience: float = 0.0,
) -> None:
    """Run ``program(rank)`` on each rank of a `Host`. An error says ``what`` and where each rank stands."""
    host = Host(Scheduler(seed, n_ranks, clock, patience), n_ranks)
    try:
        host.run(program)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}, {n_ranks} ranks: {what}", *map(str, host.ranks)]))
        raise
