"""The environment variables of each launcher: one table with a row per launcher; the first match counts.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are common to all launchers and win over a
launcher's own variables. The launcher's variables supply only what these leave unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiodist.errors import InvalidUsageError
from aiodist.rendezvous import mpi
from aiodist.rendezvous.slurm import expand_nodelist, job_port, tasks_on_this_node

Environ = Mapping[str, str]

RUN_VARIABLE = "AIODIST_RUN_ID"
"""The job's name, which the launcher makes. Ranks where it is not set may meet any others."""


@dataclass(frozen=True)
class Number:
    """A whole number and its origin, for messages: ``rank=4``, ``RANK=4``."""

    value: int
    origin: str

    def __str__(self) -> str:
        return f"{self.origin}={self.value}"


@dataclass(frozen=True)
class Meeting:
    """Where a launcher lets its ranks meet. ``missing``: variables that would have to be set.

    ``by_munge``: whether ranks without a secret may share one by MUNGE, see `munge`.
    """

    host: str | None = None
    port: Number | None = None
    file: Path | None = None
    missing: tuple[str, ...] = ()
    by_munge: bool = False


@dataclass(frozen=True)
class Launcher:
    """A row of the table. It matches when all its ``markers`` are set.

    ``marker_value``: the required value of the first marker, if being set is not enough.
    """

    name: str
    markers: tuple[str, ...]
    rank: str
    size: str
    local_rank: str
    local_size: str | None
    meet: Callable[[Environ, Launcher], Meeting]
    marker_value: str | None = None
    agent: bool = False
    """Whether the launcher itself serves a torch TCPStore at MASTER_PORT."""
    count_local: Callable[[Environ], int | None] | None = None
    """Counts the ranks on this host, if no single variable says it."""

    def started(self, environ: Environ) -> bool:
        if not all(environ.get(marker) for marker in self.markers):
            return False
        return self.marker_value is None or environ[self.markers[0]] == self.marker_value


@dataclass(frozen=True)
class LaunchEnvironment:
    """The facts of an environment, each read on demand.

    A fact that an argument overrides is read only for messages. None means that the environment
    does not say. Raises InvalidUsageError for malformed values.
    """

    environ: Environ
    launcher: Launcher

    def rank(self) -> Number | None:
        return _first_number(self.environ, "RANK", self.launcher.rank)

    def size(self) -> Number | None:
        return _first_number(self.environ, "WORLD_SIZE", self.launcher.size)

    def overruled(self, rank: Number, size: Number) -> list[str]:
        """Return texts for rank and size of the environment where they differ from the given ones."""
        found = []
        for given, own in (
            (rank, ("RANK", self.launcher.rank)),
            (size, ("WORLD_SIZE", self.launcher.size)),
        ):
            name, text = _first_text(self.environ, *own)
            if text and given.origin != name and text != str(given.value):
                found.append(f"{given} overrules {name}={text}")
        return found

    def local_rank(self) -> int | None:
        number = _first_number(self.environ, "LOCAL_RANK", self.launcher.local_rank)
        return None if number is None else number.value

    def local_size(self) -> int | None:
        number = _first_number(self.environ, "LOCAL_WORLD_SIZE", self.launcher.local_size)
        if number is None and self.launcher.count_local is not None:
            return self.launcher.count_local(self.environ)
        return None if number is None else number.value

    def meeting(self) -> Meeting:
        return self.launcher.meet(self.environ, self.launcher)


def read_environment(environ: Environ) -> LaunchEnvironment:
    """Return the facts of the launcher whose variables are in ``environ``."""
    return LaunchEnvironment(environ, next(row for row in LAUNCHERS if row.started(environ)))


def _first_number(environ: Environ, *names: str | None) -> Number | None:
    name, text = _first_text(environ, *names)
    return whole_number(text, name) if text else None


def _first_text(environ: Environ, *names: str | None) -> tuple[str, str]:
    """Return the first of ``names`` that is set and its value, or two times ""."""
    for name in filter(None, names):
        text = environ.get(name, "").strip()
        if text:
            return name, text
    return "", ""


def whole_number(text: str, origin: str) -> Number:
    """Return ``text`` as a Number. Raises InvalidUsageError, which names ``origin``."""
    try:
        return Number(int(text), origin)
    except ValueError:
        raise InvalidUsageError(f"{origin}={text!r} is not a whole number") from None


def port_number(text: str, origin: str) -> Number:
    """Return ``text`` as a TCP port from 1 to 65535. Raises InvalidUsageError."""
    port = whole_number(text, origin)
    if not 0 < port.value < 65536:
        raise InvalidUsageError(f"{port} is not a TCP port: those go from 1 to 65535")
    return port


def _meet_at_master(environ: Environ, launcher: Launcher) -> Meeting:
    host = environ.get("MASTER_ADDR", "").strip() or None
    text = environ.get("MASTER_PORT", "").strip()
    port = port_number(text, "MASTER_PORT") if text else None
    pairs = (("MASTER_ADDR", host), ("MASTER_PORT", port))
    return Meeting(host, port, missing=tuple(name for name, value in pairs if value is None))


def _meet_in_slurm(environ: Environ, launcher: Launcher) -> Meeting:
    master = _meet_at_master(environ, launcher)
    host, port = master.host, master.port
    missing: list[str] = []
    if host is None:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        if nodes:
            host = expand_nodelist(nodes)[0]
        else:
            missing.append("SLURM_JOB_NODELIST")
    if port is None:
        job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
        if job:
            port = Number(job_port(job, step), "the port derived from SLURM_JOB_ID")
        else:
            missing.append("SLURM_JOB_ID")
    return Meeting(host, port, missing=tuple(missing), by_munge=True)


def _meet_in_mpi(environ: Environ, launcher: Launcher) -> Meeting:
    master = _meet_at_master(environ, launcher)
    size = _first_number(environ, launcher.size)
    local_size = _first_number(environ, launcher.local_size)
    one_host = size is not None and local_size is not None and local_size.value == size.value
    # If only one of the two is set, that is a mistake, which meeting at a file would hide.
    if len(master.missing) < 2 or not one_host:
        return master
    return Meeting(file=mpi.meeting_file(environ, launcher.rank))


LAUNCHERS: tuple[Launcher, ...] = (
    # torchrun's agent serves a torch TCPStore at MASTER_PORT, unless it says otherwise.
    Launcher(
        "torchrun", ("TORCHELASTIC_USE_AGENT_STORE", "RANK"),
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _meet_at_master,
        marker_value="True", agent=True,
    ),
    # `aiodist run`, torchrun without its agent's store, and variables set by hand.
    Launcher(
        "the environment", ("RANK",),
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _meet_at_master,
    ),
    # MPI before Slurm: mpiexec inside of a Slurm job starts its daemons by srun, and the ranks
    # then see the daemon's SLURM_PROCID.
    Launcher(
        "Open MPI", ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", _meet_in_mpi,
    ),
    Launcher(
        "MPICH", ("PMI_RANK", "MPI_LOCALRANKID"),
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", _meet_in_mpi,
    ),
    Launcher(
        "Slurm", ("SLURM_PROCID",),
        "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", None, _meet_in_slurm,
        count_local=tasks_on_this_node,
    ),
    # A PMI without local numbers (srun --mpi=pmi2 is already taken by the row above).
    Launcher(
        "PMI", ("PMI_RANK",),
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", _meet_in_mpi,
    ),
    Launcher(
        "the environment", (),
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _meet_at_master,
    ),
)  # fmt: skip
"""In order of precedence. The last row always matches."""
