"""One rank of a start: ``python -m benchmarks.starting.rank LIBRARY FOLDER``.

It writes to ``FOLDER/RANK.json`` the end of its first all_reduce, on the clock that all processes
of a host share, and what its process holds then: see `Facts`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTLE, IDLE = 1.0, 2.0
"""Seconds until waiting ranks have fallen asleep, and of the measurement after that."""

ASYNC, BLOCKING, GLOO, MPI, ALONE = "async", "blocking", "gloo", "openmpi", "alone"


@dataclass(frozen=True)
class Facts:
    """What one rank's process was right after its first all_reduce, and used while it waited.

    ``memory``: its proportional share of resident bytes; ``private``: those that no other process
    maps. ``files``: open descriptors; ``sockets``: those that are a socket. ``idle``: the share of
    one core that all its threads used while it waited for another rank.
    """

    end: int
    memory: int
    private: int
    files: int
    sockets: int
    threads: int
    has_torch: bool
    idle: float = 0.0

    @classmethod
    def now(cls, end: int) -> Facts:
        """Read them from /proc. ``end``: nanoseconds of `time.monotonic_ns`."""
        sizes: dict[str, int] = {}
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) << 10
        files = [link for each in Path("/proc/self/fd").iterdir() if (link := _target(each))]
        return cls(
            end,
            sizes["Pss"],
            sizes["Private_Clean"] + sizes["Private_Dirty"],
            len(files),
            sum(link.startswith("socket:") for link in files),
            len(list(Path("/proc/self/task").iterdir())),
            "torch" in sys.modules,
        )


class _IdleWatch(threading.Thread):
    """Measures what the process uses while it waits. ``share``: of one core, by all threads."""

    share = 0.0

    def run(self) -> None:
        time.sleep(SETTLE)
        before = time.process_time()
        time.sleep(IDLE)
        self.share = (time.process_time() - before) / IDLE


def main() -> None:
    """Start one rank, and write its facts."""
    library, folder = sys.argv[1], Path(sys.argv[2])
    rank, facts = _RUNS[library]()
    (folder / f"{rank}.json").write_text(json.dumps(dataclasses.asdict(facts)), encoding="utf-8")


def _async() -> tuple[int, Facts]:
    return asyncio.run(_awaited())


async def _awaited() -> tuple[int, Facts]:
    import numpy as np

    import aiodist as dist

    async with dist.process_group():
        ones = np.ones(1, np.float32)
        await dist.all_reduce(ones)
        end = time.monotonic_ns()
        _check(float(ones[0]), dist.get_world_size())
        await dist.barrier()
        facts = Facts.now(end)
        watch = _IdleWatch()
        watch.start()
        if dist.get_rank() == 0:
            await asyncio.sleep(SETTLE + IDLE)
        await dist.barrier()
        watch.join()
        return dist.get_rank(), dataclasses.replace(facts, idle=watch.share)


def _blocking() -> tuple[int, Facts]:
    import numpy as np

    import aiodist.sync as dist

    dist.init_process_group()
    return _by(dist, np.ones(1, np.float32))


def _gloo() -> tuple[int, Facts]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return _by(dist, torch.ones(1))


def _by(dist: Any, ones: Any) -> tuple[int, Facts]:
    """Reduce ``ones`` by the functions of ``dist``, whose names and meaning are torch's."""
    dist.all_reduce(ones)
    end = time.monotonic_ns()
    _check(float(ones[0]), dist.get_world_size())
    dist.barrier()
    facts = Facts.now(end)
    rank = dist.get_rank()
    idle = _idle(rank, dist.barrier)
    dist.destroy_process_group()
    return rank, dataclasses.replace(facts, idle=idle)


def _mpi() -> tuple[int, Facts]:
    import numpy as np
    from mpi4py import MPI as Mpi  # noqa: N811  # MPI is the library's name here

    comm = Mpi.COMM_WORLD
    ones = np.ones(1, np.float32)
    comm.Allreduce(Mpi.IN_PLACE, ones)
    end = time.monotonic_ns()
    _check(float(ones[0]), comm.size)
    comm.Barrier()
    facts = Facts.now(end)
    return comm.rank, dataclasses.replace(facts, idle=_idle(comm.rank, comm.Barrier))


def _idle(rank: int, barrier: Callable[[], Any]) -> float:
    """Return what this rank uses, as a share of one core, while it waits in ``barrier`` for rank 0."""
    watch = _IdleWatch()
    watch.start()
    if rank == 0:
        time.sleep(SETTLE + IDLE)
    barrier()
    watch.join()
    return watch.share


def _alone() -> tuple[int, Facts]:
    import numpy as np

    _check(float(np.ones(1, np.float32)[0]), 1)
    return int(os.environ["RANK"]), Facts.now(time.monotonic_ns())


def _check(total: float, ranks: int) -> None:
    if total != ranks:
        raise RuntimeError(f"the sum over {ranks} ranks is {total}")


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # the one through which the folder was listed is closed again
        return ""


_RUNS = {ASYNC: _async, BLOCKING: _blocking, GLOO: _gloo, MPI: _mpi, ALONE: _alone}

if __name__ == "__main__":
    main()
