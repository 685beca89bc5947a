"""Become one rank: ``python -I -S child.py PARENT_PID COMMAND...``.

Asks the kernel to kill this process when its launcher dies, then executes the command in place:
same process, same pid. The request must be made inside the child. A ``preexec_fn`` would run Python
between fork and exec, which can deadlock if the launching process has threads (`run_job` may be
called from any program). A separate small interpreter avoids that and costs about ten milliseconds.
It imports nothing of aiodist, so that it may run isolated.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Never returns where the command can be executed; else the shell's 126 or 127."""
    parent, command = int(argv[1]), argv[2:]
    # Ignored signals stay ignored across exec: Python ignores SIGPIPE and SIGXFSZ, and a shell's
    # background jobs ignore SIGINT, by which the launcher stops its ranks.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"aiodist: cannot run {command[0]!r}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def die_with_parent(parent: int) -> None:
    """Have SIGKILL sent to this process when process ``parent`` ends, or already now if it has."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
