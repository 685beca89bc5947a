"""The last line of a job: how long it took, its ranks, its peak memory."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

from aiodist.launch.process import RSS_UNIT
from aiodist.launch.quantities import bytes_text


def summary(
    tag: str, n_ranks: int, seconds: float, peaks: Mapping[int, int], log_dir: Path | None
) -> str:
    """Return the line. ``peaks``: the most resident bytes of each rank that the system told.

    The system starts a process in the memory of the one that starts it, and counts that too: a rank
    with less memory than the launcher is not told apart from the launcher.
    """
    parts = [f"{n_ranks} rank{'s' * (n_ranks != 1)}", duration(seconds)]
    if peaks:
        rank = max(peaks, key=lambda rank: peaks[rank])
        at_most = "at most " if peaks[rank] <= _own_peak() else ""
        parts.append(f"peak memory {at_most}{bytes_text(peaks[rank])} (rank {rank})")
    if log_dir is not None:
        parts.append(f"output in {log_dir}")
    return f"aiodist: {f'{tag}: ' * bool(tag)}{', '.join(parts)}"


def _own_peak() -> int:
    """Return the most resident bytes that this process had since it began its program.

    The system's ``ru_maxrss`` may be that of the process which started it.
    """
    try:
        # A process may have a name of any bytes.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, IndexError):  # not Linux, or a sandbox such as gVisor, which tells less
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def duration(seconds: float) -> str:
    """``12.3 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
