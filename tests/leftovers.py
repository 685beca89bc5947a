"""What is left of a job when it is over."""

from __future__ import annotations

import os

_OF_OTHERS = ("sem.", "torch_", "psm_", "mpich_shm", "sm_segment.", "vader_segment.")
"""Names that multiprocessing, torch and MPI give theirs: other tests may run beside this one."""


def named_segments() -> set[str]:
    """Shared memory that has a name, and so outlives its processes."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(_OF_OTHERS)}
