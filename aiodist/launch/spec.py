"""The job to start: one node's share of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from aiodist.errors import InvalidUsageError
from aiodist.launch.environment import INHERITED_FROM_AN_OUTER_JOB, job_identity, rank_environment
from aiodist.launch.outlets import OutputOptions
from aiodist.launch.remote.host_list import HostSlots

MOST_RANKS = 1 << 20
"""No job has so many: a larger number is a slip."""

_TAG = re.compile(r"[A-Za-z0-9._-]{1,48}")

DEFAULT_MASTER_PORT = 29500
"""The port of a job on several nodes, unless one is given, as in torch: every node must know it."""


class Place(NamedTuple):
    """A rank, its number among the ``local_size`` ranks of its host, and the number of that host.

    ``host``: None for the machine of the launcher.
    """

    rank: int
    local_rank: int
    local_size: int
    host: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job as one launcher sees it. Checked when made: raises InvalidUsageError, and TypeError for a
    command that is one text.

    ``program`` is what each rank runs, such as ``(sys.executable, "train.py")``, and ``arguments``
    what follows; ``--local_rank=K`` goes between the two where ``pass_local_rank`` is set.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    nproc: int = 1
    nnodes: int = 1
    node_rank: int = 0
    hosts: tuple[HostSlots, ...] = ()
    """Where the ranks are, in order; empty for this machine. Then ``nproc`` and ``nnodes`` are unused."""
    ssh: tuple[str, ...] = ("ssh",)
    """The command that leads to a host."""
    master_addr: str | None = None
    """None: 127.0.0.1, or the first of ``hosts``."""
    master_port: int | None = None
    """None: a free port is reserved; with ``nnodes`` above 1 ``DEFAULT_MASTER_PORT``, 29500."""
    pass_local_rank: bool = False
    prefix: bool = True
    """Put ``[rank]`` before each line. False: the ranks write to our own stdout and stderr."""
    grace: float = 5.0
    """Seconds between asking a rank to stop and killing it; 0 kills at once."""
    max_restarts: int = 0
    """How often ranks that failed are started anew, before a failure ends the job; on one node."""
    keep_going: bool = False
    """Leave the other ranks running when a rank fails; they notice by themselves and may `shrink`."""
    output: OutputOptions = OutputOptions()  # noqa: RUF009  # frozen
    tag: str = ""
    """The job's name, as AIODIST_RUN_ID; empty for what the environment has, or a new one."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """What the ranks inherit, before the job's own variables."""
    given: frozenset[str] = frozenset()
    """Names in ``environment`` that ranks on other hosts get even if they describe a session."""

    def __post_init__(self) -> None:
        for name in ("program", "arguments", "ssh"):
            words = getattr(self, name)
            if isinstance(words, str):
                raise TypeError(
                    f"{name} must be a tuple of words, such as ({words!r},), not {words!r}"
                )
        if not self.program:
            raise InvalidUsageError("there is nothing to start: name a program")
        if self.nproc < 1:
            raise InvalidUsageError(f"the number of processes must be at least 1, not {self.nproc}")
        if self.nnodes < 1:
            raise InvalidUsageError(f"the number of nodes must be at least 1, not {self.nnodes}")
        if not 0 <= self.node_rank < self.nnodes:
            raise InvalidUsageError(
                f"the node's rank must be from 0 to {self.nnodes - 1} in a job of "
                f"{self.nnodes} node(s), not {self.node_rank}"
            )
        if self.master_port is not None and not 1 <= self.master_port <= 65535:
            raise InvalidUsageError(
                f"the master port must be from 1 to 65535, not {self.master_port}"
            )
        if self.world_size > MOST_RANKS:
            raise InvalidUsageError(
                f"a job has at most {MOST_RANKS:,} ranks, not {self.world_size:,}"
            )
        if self.max_restarts < 0:
            raise InvalidUsageError(
                f"the number of restarts must be 0 or more, not {self.max_restarts}"
            )
        if (
            not self.prefix
            and not self.hosts
            and self.output != OutputOptions(summary=self.output.summary)
        ):
            raise InvalidUsageError(
                "--raw leaves the output to the ranks themselves: leave it out, or --log-dir, "
                "--show-ranks and --fold"
            )
        if unknown := sorted(
            rank for rank in self.output.shown or () if not 0 <= rank < self.world_size
        ):
            raise InvalidUsageError(
                f"--show-ranks: there is no rank {unknown[0]} in a job of ranks 0 to "
                f"{self.world_size - 1}"
            )
        if self.tag and not _TAG.fullmatch(self.tag):
            raise InvalidUsageError(
                f"--tag takes up to 48 letters, digits, dots, dashes and underscores, not "
                f"{self.tag!r}"
            )
        if self.hosts and self.nnodes > 1:
            raise InvalidUsageError(
                "-H and --hostfile start the ranks of all hosts from here, and --nnodes is for a "
                "launcher on each: leave one out"
            )
        if self.max_restarts and self.hosts:
            raise InvalidUsageError(
                "--max-restarts is for a job on one node: leave it out, or -H and --hostfile"
            )
        if self.max_restarts and self.nnodes > 1:
            raise InvalidUsageError(
                "--max-restarts is for a job on one node: the launchers of several do not know of "
                "each other; leave it out, or use torchrun"
            )
        if self.max_restarts and self.keep_going:
            raise InvalidUsageError(
                "--keep-going and --max-restarts exclude each other: one leaves the place of a "
                "rank that failed empty, the other starts it anew; leave one out"
            )
        if not self.grace >= 0:  # catches nan, too
            raise InvalidUsageError(f"the grace must be 0 or more seconds, not {self.grace}")

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return sum(host.slots for host in self.hosts) or self.nnodes * self.nproc

    def places(self) -> list[Place]:
        """Return the places of the ranks that this launcher starts."""
        if not self.hosts:
            first = self.node_rank * self.nproc
            return [Place(first + local, local, self.nproc) for local in range(self.nproc)]
        ranks = count()
        return [
            Place(next(ranks), local, host.slots, number)
            for number, host in enumerate(self.hosts)
            for local in range(host.slots)
        ]

    def command(self, local_rank: int) -> list[str]:
        """Return the command line of one rank.

        Args:
            local_rank: The rank's number on its host.
        """
        own = [f"--local_rank={local_rank}"] if self.pass_local_rank else []
        return [*self.program, *own, *self.arguments]

    def limits_threads(self) -> bool:
        """Whether ranks get OMP_NUM_THREADS=1, so that they do not compete for the cores."""
        most = max((host.slots for host in self.hosts), default=self.nproc)
        return most > 1 and "OMP_NUM_THREADS" not in self.environment

    def shared_environment(self) -> dict[str, str]:
        """Return the environment common to all ranks of this launcher; made once for the job.

        With ``nnodes`` above 1 the secret and the run's name are what the user set, or unset: one
        node cannot tell the others what it generated.
        """
        env = dict(self.environment)
        for name in INHERITED_FROM_AN_OUTER_JOB:
            env.pop(name, None)
        if self.tag:
            env["AIODIST_RUN_ID"] = self.tag
        if self.nnodes == 1:
            env |= job_identity(env)
        if self.limits_threads():
            env["OMP_NUM_THREADS"] = "1"
        # A line appears when it is printed, not when a pipe is full.
        env.setdefault("PYTHONUNBUFFERED", "1")
        return env

    def rank_variables(self, place: Place) -> dict[str, str]:
        """Return the variables of one rank alone.

        Args:
            place: Where the rank is.
        """
        return rank_environment(
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=self.world_size,
            local_world_size=place.local_size,
        )
