"""What MPI leaves in shared memory: MPICH when ranks are killed, Open MPI without ``mpiexec``.

Open MPI could be told another folder, MPICH could not: so what is left is removed, for both alike.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
NAMES = ("mpich_shm_", "sm_segment.", "vader_segment.")
"""How the files of MPICH, of Open MPI and of Open MPI 4 begin."""


@contextlib.contextmanager
def swept() -> Iterator[None]:
    """Around a job: remove the files that have come meanwhile and that no process uses.

    Other jobs may run beside it, and what they have in use stays.
    """
    before = _segments()
    try:
        yield
    finally:
        for path in (_segments() - before) - _in_use():
            with contextlib.suppress(OSError):  # its job has done it
                path.unlink()


def _segments() -> set[Path]:
    if not FOLDER.is_dir():
        return set()
    return {path for path in FOLDER.iterdir() if path.name.startswith(NAMES)}


def _in_use() -> set[Path]:
    """Return the files that the processes visible to this user have mapped or open."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for line in (process / "maps").read_text().splitlines():
                _, slash, rest = line.partition(f"{FOLDER}/")
                found.add(Path(slash + rest))
            found.update(Path(os.readlink(link)) for link in (process / "fd").iterdir())
    return found
