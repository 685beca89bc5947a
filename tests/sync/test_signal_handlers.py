"""Handlers of signals that raise, as those of a program's own time limits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limits import scaled

STRUCK = """
    import signal, sys, threading, time
    import numpy as np
    import aiodist.sync as dist

    class Late(Exception): pass

    def strike(number, frame):
        raise Late

    def struck_call(after):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, after, 0.02)
                while True:
                    dist.all_reduce(x)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            return 1

    def call():
        dist.all_reduce(x, timeout=5)
        ended.append(True)

    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    x, ended = np.ones(4), []
    dist.all_reduce(x)
    signal.signal(signal.SIGALRM, strike)
    end, strikes = time.monotonic() + 0.5, 0
    while time.monotonic() < end:
        strikes += struck_call(0.0001 + strikes % 97 * 3e-6)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    print(strikes > 20, ended)
    sys.stdout.flush()
"""


def test_a_handler_that_raises_in_a_call_leaves_the_engine_free(
    script: Callable[..., subprocess.Popen[str]],
) -> None:
    # Python tells of what a handler raised in a finalizer, and of operations struck in their midst.
    process = script(STRUCK, PYTHONWARNINGS="ignore")
    out, told = process.communicate(timeout=scaled(30))
    assert out == "True [True]\n", told


ENDED_BY_A_HANDLER = """
    import signal, sys, time
    import numpy as np
    import aiodist.sync as dist

    # Rank 0 is struck in a wait.
    path, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
    x = np.ones(1)

    def end(number, frame):
        before = time.monotonic()
        dist.abort_process_group()
        print(time.monotonic() - before < 3)
        sys.exit(7)

    if rank == 0:
        signal.signal(signal.SIGALRM, end)
        dist.barrier()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        dist.recv(x, 1) if how == "message" else dist.all_reduce(x)
    else:
        dist.barrier()
        sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["message", "collective"])
def test_a_handler_may_abort_the_group_and_end_the_program(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: str
) -> None:
    ending, other = (script(ENDED_BY_A_HANDLER, tmp_path / "store", rank, how) for rank in range(2))
    out, told = ending.communicate(timeout=scaled(30))
    assert (ending.returncode, out, told) == (7, "True\n", "")
    other.communicate(timeout=scaled(30))
