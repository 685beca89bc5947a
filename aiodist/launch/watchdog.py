"""Kills what a dead launcher left behind: ``python -I -S watchdog.py``, one for each launcher.

The launcher writes ``+PGID`` when it starts a rank in a process group and ``-PGID`` when the group
is empty. When the launcher ends, however it ends, the pipe closes, and the groups still listed are
killed: with the ranks their own children (data loader workers, a shell's commands), which the
kernel's parent-death signal does not reach. It works wherever there are pipes and groups.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable


def main() -> int:
    """Read until the launcher is gone, then kill. Ignores the signals that end whole sessions."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for group in surviving(sys.stdin.buffer):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue  # it ended in the meantime
    return 0


def surviving(lines: Iterable[bytes]) -> set[int]:
    """Return the groups announced by ``+`` and not taken back by ``-``."""
    groups: set[int] = set()
    for line in lines:
        if not line.endswith(b"\n"):
            break  # cut short: half a number would name a stranger's group
        sign, number = line[:1], int(line[1:])
        if sign == b"+":
            groups.add(number)
        else:
            groups.discard(number)
    return groups


if __name__ == "__main__":
    sys.exit(main())
