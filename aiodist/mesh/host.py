"""The host that this process runs on, as far as ranks must know it of each other."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


HOST_VARIABLE = "AIODIST_HOST_ID"
"""Names the host that a rank is to count as its own, where the kernel's run does not tell."""


def host_id() -> str:
    """A name for this kernel's run: equal on all ranks of one host, also in its containers.

    AIODIST_HOST_ID takes its place: ranks that have different ones share nothing.
    """
    if name := os.environ.get(HOST_VARIABLE, "").strip():
        return name
    path = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return f"{socket.gethostname()}-{os.name}"
