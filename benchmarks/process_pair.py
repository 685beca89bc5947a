"""Two processes that measure something between them, each by the same function."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Measure = Callable[[int, str, int, int, Connection], None]
"""(rank, folder that both share, count, rounds, pipe) -> None, when its figures are in the pipe."""


def measure_pair(process: Measure, description: str | None, count: int, rounds: int) -> list[Any]:
    """Read --count and --rounds, run ``process`` on two ranks, and return what each found.

    ``count``, ``rounds``: the defaults. Raises EOFError if a process ends without figures.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
        processes = [
            spawn.Process(target=process, args=(rank, folder, options.count, options.rounds, to))
            for rank, (_, to) in enumerate(pipes)
        ]
        try:
            for each, (_, to) in zip(processes, pipes, strict=True):
                each.start()
                to.close()  # so that the end of the process is the end of the pipe
            found = [come.recv() for come, _ in pipes]
            for each in processes:
                each.join()
        finally:
            for each in processes:
                if each.is_alive():
                    each.kill()
                    each.join()
    return found
