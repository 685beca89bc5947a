"""What one rank of a cell does, in a process of its own, and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import uvloop

import aiodist as dist
from aiodist.api.settings import SHARED
from aiodist.credentials import VARIABLES as TLS_VARIABLES
from aiodist.deadline import Deadline
from aiodist.groups.world import current_world
from aiodist.rendezvous import meeting
from aiodist.store import Store
from aiodist.testing import Faults, FaultyConnection, FaultyTransport
from aiodist.transport.base_transport import Connection, Listener, OnAccept, Transport
from aiodist.transport.transports import Transports
from tests.faults.cells import (
    AT_A_FLAG,
    FAULTS,
    IN_INIT,
    INIT_SECONDS,
    LARGE,
    MEETING,
    USUAL_SECONDS,
    Cell,
    transport_variable,
)
from tests.faults.contents import of_rank, total
from tests.faults.in_memory import all_kinds, at_flag, damage_next, world_communicator
from tests.faults.lateness import turns_of

SEND_BYTES = 8 << 20
LARGE_BYTES = 64 << 20
INTO_THE_TRANSFER = 0.01
"""Seconds after which a fault strikes a large transfer."""

FLAGS_INTO_THE_TRANSFER = 50
"""The same in shared memory, where it can be told to the flag."""

GRACE_SECONDS = 2.0
"""How long a thread or descriptor that is on its way out may take to be gone."""

USUAL_LATENCY = 50e-6
USUAL_BYTES_PER_SECOND = 2.5e9
SLOWDOWN = 100


class Control:
    """The pipes to the nursery: lines of JSON to it, single bytes from it."""

    def __init__(self, to_nursery: int, from_nursery: int) -> None:
        self._out = to_nursery
        self._in = from_nursery

    def say(self, what: str, **facts: Any) -> None:
        os.write(self._out, json.dumps({"say": what, **facts}).encode() + b"\n")

    async def go(self) -> None:
        """Wait for the nursery's next word, with the loop free."""
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        loop.add_reader(self._in, heard.set)
        try:
            await heard.wait()
        finally:
            loop.remove_reader(self._in)
        if not os.read(self._in, 1):
            os._exit(9)  # the nursery is gone


def become_rank(cell: Cell, rank: int, control: Control, place: str) -> NoReturn:
    """The whole life of a forked rank."""
    code = 1
    try:
        os.environ.update(
            AIODIST_TRANSPORT=transport_variable(cell.transport),
            AIODIST_SECRET="the matrix",
            AIODIST_LIVENESS_TIMEOUT=str(FAULTS[cell.fault].liveness),
        )
        if cell.transport != "tls":
            for name in TLS_VARIABLES:
                os.environ.pop(name, None)
        with asyncio.Runner(loop_factory=_loop_factory(rank)) as runner:
            runner.run(_Rank(cell, rank, control, place).live())
        code = 0
    except (CulpritError, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # the nursery reports it
        with contextlib.suppress(OSError):
            control.say("broken", error=f"{type(error).__name__}: {error}")
    # Python's own end takes a tenth of a second of work, hundreds of times: only culprits go
    # through it. That a survivor has left nothing running is checked before.
    sys.stderr.flush()
    os._exit(code)


class CulpritError(Exception):
    """An error that the culprit raises and no code catches."""


def _loop_factory(rank: int) -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop if rank % 2 else asyncio.new_event_loop


class _Rank:
    def __init__(self, cell: Cell, rank: int, control: Control, place: str) -> None:
        self._cell = cell
        self._rank = rank
        self._control = control
        self._place = place
        self._fault = FAULTS[cell.fault]
        self._is_culprit = rank == cell.culprit
        slow = cell.fault == "slow"
        delay = USUAL_LATENCY * SLOWDOWN if slow else 0.0
        rate = USUAL_BYTES_PER_SECOND / SLOWDOWN if slow else math.inf
        self._faults = Faults(delay=delay, bytes_per_second=rate)
        # The heartbeat thread's thread has a loop and connections of its own.
        self._heartbeat_faults = Faults(delay=delay, bytes_per_second=rate)
        self._before = (0, 0)
        self._large: np.ndarray[Any, Any] | None = None

    async def live(self) -> None:
        cell, control = self._cell, self._control
        if not self._fault.ends:
            _wrap_transports(self._faults, self._heartbeat_faults)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        await loop.run_in_executor(None, time.monotonic)  # its thread stays
        first = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        first.close()  # what uvloop keeps in reserve from its first stream on stays as well
        await first.wait_closed()
        self._before = _descriptors(), threading.active_count()
        if cell.phase == IN_INIT and self._is_culprit:
            control.say("ready")
            await control.go()
            await self._strike()
        if cell.phase == IN_INIT:
            control.say("ready")
            await control.go()
            await self._report(self._initialise(INIT_SECONDS))
            return
        if cell.phase == MEETING:
            await self._meet()
            return
        await self._initialise(USUAL_SECONDS)
        if cell.phase != "connecting":
            await connect_everybody(cell.size)
        current_world().default_group().timeout = self._fault.timeout
        if cell.transport == SHARED:
            assert world_communicator().words or cell.phase == "connecting"
        if cell.phase == LARGE:  # before the fault, for which getting memory may take too long
            self._large = of_rank(self._rank, LARGE_BYTES // 4, np.float32)
        control.say("ready")
        await control.go()
        if not self._is_culprit:
            await self._report(self._operation())
            return
        if cell.phase == LARGE or cell.flag:
            await self._report(await self._struck_inside())
        else:
            await self._strike()
            await self._report(self._operation())

    async def _meet(self) -> None:
        if not self._is_culprit:
            self._control.say("ready")
            await self._report(self._initialise(USUAL_SECONDS))
            return
        meeting.exchange = self._struck_on_arrival
        await self._initialise(USUAL_SECONDS)

    async def _struck_on_arrival(
        self, store: Store, rank: int, size: int, value: bytes, deadline: Deadline, **_: Any
    ) -> list[bytes]:
        """In the place of the `exchange` that this rank enters, last of all."""
        others = [other for other in range(size) if other != rank]
        await store.wait([f"exchange/{other}" for other in others], deadline)
        self._control.say("ready")
        await self._control.go()
        self._end()
        raise AssertionError("unreachable: it has ended")

    async def _struck_inside(self) -> Awaitable[None]:
        """The operation, begun, once the fault has struck in the middle of it."""
        if self._cell.transport != SHARED:
            work = asyncio.ensure_future(self._operation())
            await asyncio.sleep(INTO_THE_TRANSFER)
            await self._strike()
            return work
        reached = asyncio.Event()
        at_once = self._cell.fault in ("SIGKILL", "SIGSTOP")  # not even its step is finished
        act = self._end if at_once else reached.set
        at_flag(self._cell.flag or FLAGS_INTO_THE_TRANSFER, act)
        work = asyncio.ensure_future(self._operation())
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        # On a busy machine its own short timeout may have ended it before.
        assert reached.is_set() or work.exception(), "the operation has fewer flags"
        await self._strike()
        return work

    async def _initialise(self, timeout: float) -> None:
        await dist.init_process_group(
            init_method=self._place,
            rank=self._rank,
            world_size=self._cell.size,
            timeout=timeout,
        )

    async def _operation(self) -> None:
        """The operation of the phase. AssertionError where it succeeds with a wrong result."""
        cell = self._cell
        phase = cell.phase
        if phase == "in send":
            await self._exchange()
        elif phase == "in barrier":
            await self._enter(dist.barrier())
        elif phase == "in new_group":
            await self._enter(dist.new_group(list(range(cell.size))))
        elif phase == AT_A_FLAG:
            await all_kinds(self._rank, cell.size)
        else:
            data = self._large
            if data is None:
                data = of_rank(self._rank, 1, np.float32)
            await self._enter(dist.all_reduce(data))
            expected = total(range(cell.size), len(data), np.float32)
            assert (data == expected).all(), "all_reduce succeeded with a wrong result"

    async def _exchange(self) -> None:
        """Every other rank sends to the culprit, which (if it lives) receives from all."""
        cell = self._cell
        if not self._is_culprit:
            data = of_rank(self._rank, SEND_BYTES, np.uint8)
            await self._enter(dist.isend(data, cell.culprit))
            return
        for src in range(cell.size):
            if src != self._rank:
                data = np.empty(SEND_BYTES, np.uint8)
                await dist.recv(data, src)
                expected = of_rank(src, SEND_BYTES, np.uint8)
                assert (data == expected).all(), "a message arrived with a wrong content"

    async def _enter(self, work: Awaitable[Any]) -> None:
        if not self._is_culprit:
            self._control.say("inside")
        await work

    async def _report(self, operation: Awaitable[Any]) -> None:
        """Await the operation; then see that later ones end as well, leave, and tell all of it."""
        error = await error_of(operation)
        facts = {"ended": time.monotonic(), "turns": turns_of(os.getpid()), **describe(error)}
        if dist.is_initialized():
            facts["later"] = describe(await error_of(_barrier()))
            facts["later_ended"] = time.monotonic()
            if self._fault.succeeds:
                await self._control_point()
            facts["leaving"] = describe(await error_of(dist.destroy_process_group()))
        facts["left"] = time.monotonic()
        for faults in (self._faults, self._heartbeat_faults):
            faults.mend()
        facts["leftovers"] = await self._leftovers_at_last()
        self._control.say("done", **facts)

    async def _control_point(self) -> None:
        """All are done before anybody leaves."""
        self._control.say("finished")
        await self._control.go()

    async def _leftovers_at_last(self) -> list[str]:
        """What is left once everything has had its time to go, which a slow rank needs."""
        end = time.monotonic() + GRACE_SECONDS
        await asyncio.sleep(0)  # descriptors of aborted connections go in the loop's next turn
        while (found := self._leftovers()) and time.monotonic() < end:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)
        return found

    def _leftovers(self) -> list[str]:
        found = []
        descriptors, threads = self._before
        if (now := _descriptors()) > descriptors:
            found.append(f"{now - descriptors} descriptors")
        if (now := threading.active_count()) > threads:
            found.append(f"{now - threads} threads")
        if segments := _segments():
            found.append(f"{segments} mappings of shared memory")
        here = asyncio.current_task()
        found += [f"task {task!r}" for task in asyncio.all_tasks() if task is not here]
        return found

    async def _strike(self) -> None:
        """Let the fault happen; comes back where the culprit lives on."""
        name = self._cell.fault
        if name.startswith("slow"):
            self._control.say("struck", at=time.monotonic())
            return  # all links are slow from the start, and the nursery makes a rank slow
        if self._fault.ends:
            self._end()
        at = time.monotonic()
        if name == "corrupted byte":
            self._faults.corrupt(0, 0x80)
            if self._cell.transport == SHARED:
                damage_next(0x80)
        elif name == "half-open":
            for faults in (self._heartbeat_faults, self._faults):
                faults.silence()
        elif self._cell.phase == "connecting":
            (self._faults.cut if name == "cut link" else self._faults.silence)()
        else:
            for connection in _connections_to(self._cell.neighbour):
                (connection.cut if name == "cut link" else connection.silence)()
        self._control.say("struck", at=at)

    def _end(self) -> None:
        """This rank's end, or at least that of its work."""
        name = self._cell.fault
        self._control.say("struck", at=time.monotonic())
        if name == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise SystemExit(3) if name == "exit without destroy" else CulpritError(name)


class _OfThread(Transport):
    """``inner`` with one thread's faults or another's."""

    def __init__(self, inner: Transport, faults: Faults, heartbeat_faults: Faults) -> None:
        self.scheme = inner.scheme
        self._ours = FaultyTransport(inner, faults)
        self._heartbeats = FaultyTransport(inner, heartbeat_faults)

    def _here(self) -> FaultyTransport:
        here = threading.current_thread() is threading.main_thread()
        return self._ours if here else self._heartbeats

    async def listen(self, on_accept: OnAccept) -> Listener:
        return await self._here().listen(on_accept)

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        return await self._here().connect(address, deadline)


def _wrap_transports(faults: Faults, heartbeat_faults: Faults) -> None:
    """Put them on every connection of this process."""
    plain = Transports.get

    def get(self: Transports, scheme: str) -> Transport:
        return _OfThread(plain(self, scheme), faults, heartbeat_faults)

    Transports.get = get  # type: ignore[method-assign]


def _connections_to(rank: int) -> list[FaultyConnection]:
    found = [link.connection for link in current_world().endpoint.peer(rank).links]
    assert found, "no link to the neighbour"
    return [connection for connection in found if isinstance(connection, FaultyConnection)]


async def connect_everybody(size: int) -> None:
    into = [np.zeros(1) for _ in range(size)]
    await dist.all_to_all(into, [np.ones(1) for _ in range(size)])
    await dist.barrier()


async def _barrier() -> None:
    await dist.barrier()


async def error_of(operation: Awaitable[Any]) -> BaseException | None:
    try:
        await operation
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        return error
    except asyncio.CancelledError as error:  # of a work, not of this task
        return error
    return None


def describe(error: BaseException | None) -> dict[str, Any]:
    """Return the class and the text of an error, and the ranks that it names."""
    if error is None:
        return {"error": None, "blames": []}
    if isinstance(error, dist.CollectiveTimeoutError):
        blamed = list(error.waiting_for)
    elif isinstance(error, dist.PeerLostError):
        blamed = [error.rank]
    else:
        blamed = [int(number) for number in re.findall(r"rank (\d+)", str(error))]
    typed = isinstance(error, dist.DistError)
    return {
        "error": type(error).__name__,
        "typed": typed,
        "text": str(error)[:500],
        "blames": sorted({rank for rank in blamed if rank >= 0}),
    }


def _segments() -> int:
    maps = Path("/proc/self/maps").read_text()
    return maps.count("memfd:") + maps.count("/dev/shm/")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
