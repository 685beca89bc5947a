"""``aiodist exec``: a program for torch's launchers, under srun or mpiexec.

It is started once for each rank. It sets RANK and the other variables that torch reads from what
Slurm or MPI say, and the program takes its place: same process, same output.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta

from aiodist.credentials import SECRET_VARIABLE, Certificates, job_secret
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.launch.environment import meeting_environment, rank_environment
from aiodist.launch.ports import reserve_port
from aiodist.launch.target import plain_program
from aiodist.rendezvous import rendezvous
from aiodist.rendezvous.environments import read_environment
from aiodist.rendezvous.meeting_plan import MeetingPlan, plan
from aiodist.rendezvous.node_address import address_of_node

_MEETING = timedelta(minutes=5)
"""How long ranks may take to start, where they have to agree on a port or a secret."""

_LOOPBACK = "127.0.0.1"


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist exec",
        description="Run a program in place of this one, with RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (under Slurm also OMP_NUM_THREADS and "
        "AIODIST_SECRET) set from what the launcher says: "
        "srun -n 8 aiodist exec python train.py",
        examples=(
            "srun -n 8 aiodist exec python train.py       under Slurm",
            "mpiexec -n 4 aiodist exec python train.py    under MPI's launcher",
        ),
    )
    made.add_argument("program", help="the program to run, such as python")
    made.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its own arguments"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist exec``: never returns where the program can be executed."""
    args = parser().read(argv)
    command = [*plain_program(args.program), *args.arguments]
    variables = job_variables(os.environ) | step_variables(os.environ)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and so would the program
    os.execve(command[0], command, dict(os.environ) | variables)


def job_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torch's ``env://`` reads, for the rank that ``environ`` describes.

    Ranks that an MPI launcher has started on one host agree on a free port: rank 0 reserves it,
    and this process and what it executes hold it. Raises InvalidUsageError where ``environ`` is
    of no launcher, or says too little; StoreTimeoutError where ranks do not come.
    """
    here = read_environment(environ)
    if here.rank() is None:
        raise InvalidUsageError(
            "no launcher has started this process: there is no RANK, and no variable of Slurm or "
            "MPI. Write srun or mpiexec before 'aiodist exec', or use 'aiodist run'"
        )
    own = plan(None, rank=-1, size=-1, environ=environ)
    local_rank, local_size = own.local_rank, here.local_size()
    if own.size == 1:
        local_rank, local_size = local_rank or 0, local_size or 1
    place = rank_environment(
        rank=own.rank, local_rank=local_rank, world_size=own.size, local_world_size=local_size
    )
    return place | meeting_environment(*_meeting_point(own, environ))


def step_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the number of threads and the secret of a task of Slurm; nothing for other launchers.

    OMP_NUM_THREADS is the task's number of CPUs: 1 without ``--cpus-per-task``. The ranks meet to
    share AIODIST_SECRET by MUNGE, unless they were given one, or certificates. Without MUNGE it is
    not set. Raises as ``init_process_group`` does.
    """
    own = plan(None, rank=-1, size=-1, environ=environ)
    if not own.by_munge:
        return {}
    variables: dict[str, str] = {}
    if not environ.get("OMP_NUM_THREADS"):
        variables["OMP_NUM_THREADS"] = environ.get("SLURM_CPUS_PER_TASK") or "1"
    given = job_secret(environ) or Certificates.from_environ(environ)
    if own.size > 1 and not given and (secret := asyncio.run(_share_secret(environ))):
        variables[SECRET_VARIABLE] = secret.decode()
    return variables


async def _share_secret(environ: Mapping[str, str]) -> bytes:
    """Meet the other ranks of the step; return the secret that MUNGE has told them, or empty."""
    deadline = Deadline(_MEETING)
    met = await rendezvous(None, rank=-1, size=-1, store=None, deadline=deadline, environ=environ)
    await met.close()
    return met.secret


def _meeting_point(own: MeetingPlan, environ: Mapping[str, str]) -> tuple[str, int]:
    if own.master is not None:
        return address_of_node(own.master.host, environ), own.master.port
    if own.file is None:  # a rank alone
        return _LOOPBACK, reserve_port().keep_on_exec()
    return _LOOPBACK, asyncio.run(_agree_on_port(own, environ))


async def _agree_on_port(own: MeetingPlan, environ: Mapping[str, str]) -> int:
    """Meet the other ranks of this host at their file; rank 0 reserves a port and says which."""
    deadline = Deadline(_MEETING)
    met = await rendezvous(None, rank=-1, size=-1, store=None, deadline=deadline, environ=environ)
    try:
        if own.rank == 0:
            port = reserve_port().keep_on_exec()
            await met.store.set("port", str(port).encode())
            return port
        return int(await met.store.get("port", deadline))
    finally:
        await met.close()
