"""Where ranks of an MPI launcher on one host meet: a file that only this job's ranks can name.

``mpiexec`` tells its ranks no address and no port. On one host the ranks need none: they share a
file in a directory of this user, named by the job and by the launcher's process.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from aiodist.errors import InvalidUsageError
from aiodist.procfs import stat_fields

JOB_VARIABLES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
"""Of Open MPI 5, Open MPI 4 and older Hydra. Today's Hydra names no job."""


def meeting_file(environ: Mapping[str, str], rank_variable: str) -> Path:
    """Return the file at which the ranks of this job meet: the same path on every rank, not made yet.

    ``rank_variable``: the variable that the launcher sets in its ranks, but does not have itself.
    Raises InvalidUsageError if the directory for the file cannot be made, or is not this user's
    alone.
    """
    job = next((environ[name] for name in JOB_VARIABLES if environ.get(name)), "job")
    # Include the process: a job's name may recur, because it is often made of a process id.
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{job}-{launcher_process(rank_variable)}")
    return private_directory(Path(tempfile.gettempdir())) / name


def private_directory(parent: Path) -> Path:
    """Return ``aiodist-<user id>`` in ``parent``, made if needed, closed to other users.

    Raises InvalidUsageError.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    directory = parent / f"aiodist-{user}"
    try:
        with suppress(FileExistsError):  # what it is comes next
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise InvalidUsageError(
            f"the ranks cannot meet in {directory}: {error.strerror}; let TMPDIR name a directory of "
            "this host that this user can write to, or set MASTER_ADDR and MASTER_PORT"
        ) from None
    mine = user == "user" or (found.st_uid == user and not found.st_mode & 0o077)
    if not stat.S_ISDIR(found.st_mode) or not mine:
        raise InvalidUsageError(
            f"{directory} is not a directory of this user's alone, so the ranks cannot meet in "
            "it: remove it, or set MASTER_ADDR and MASTER_PORT"
        )
    return directory


def launcher_process(rank_variable: str) -> str:
    """Return the id of the launcher's process on this host and, if known, the time of its start.

    That is the nearest ancestor that is no rank itself. A shell or a wrapper between launcher and
    script has inherited the rank's variables, and is not common to the ranks.
    """
    pid = os.getppid()
    while (parent := _parent_of_rank(pid, rank_variable)) is not None:
        pid = parent
    try:
        return f"{pid}.{stat_fields(pid)[19]}"
    except OSError:
        return str(pid)


def _parent_of_rank(pid: int, rank_variable: str) -> int | None:
    """Return the parent of ``pid``, if that process has ``rank_variable`` in its environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        parent = int(stat_fields(pid)[1])
    except OSError:
        return None
    return parent if any(v.startswith(f"{rank_variable}=".encode()) for v in variables) else None
