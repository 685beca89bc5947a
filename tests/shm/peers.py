"""Another process, with a segment of its own beside this one's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from aiodist.shm.shared_memory import SharedMemory

_MEET = """
import sys
from aiodist.shm.shared_memory import SharedMemory
mine = SharedMemory.create(1, int(sys.argv[2]))
print(mine.description, flush=True)
mine.meet({0: sys.argv[1], 1: mine.description})
"""


class Peer:
    """``said()``: the next line of the program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def peer_of(memory: SharedMemory, nbytes: int, program: str) -> Iterator[Peer]:
    """Rank 1, which has met ``memory`` as ``mine`` and runs ``program``; so has ``memory`` met it.

    It is killed at the end, if it has not ended by then.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _MEET + program, memory.description, str(nbytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        peer = Peer(process)
        try:
            memory.meet({0: memory.description, 1: peer.said()})
            yield peer
        finally:
            process.kill()
