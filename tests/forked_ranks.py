"""A process that forks ranks from itself, a program at a time: what it has imported, no rank imports again.

`serve` reads a line of JSON for each program, ``["ddp:equals_whole_batch", 3]``, and answers with one:
for each rank what its program returned, or the traceback of its error. `ForkServer` is
what tests hold of it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.limits import scaled

RANK_SECONDS = 100.0


class Answer(NamedTuple):
    """What a rank has to say: the value of its program, or the traceback of its error."""

    value: Any
    error: str | None


RankProgram = Callable[[str, int, int, str], Any]
"""Called in each rank with the program, the rank, the number of ranks and a folder they share."""


def serve(rank_program: RankProgram) -> None:
    """Fork ranks for each line of standard input until it ends."""
    faulthandler.enable()
    gc.freeze()  # so that no rank looks at what it has from here, and copies the memory of it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print is not an answer
    for line in sys.stdin:
        program, size = json.loads(line)
        print(json.dumps(_run(rank_program, program, size)), file=answers, flush=True)


def _run(rank_program: RankProgram, program: str, size: int) -> list[Answer]:
    with tempfile.TemporaryDirectory(prefix="aiodist-ranks-") as folder:
        fork = multiprocessing.get_context("fork")
        links, children = [], []
        for rank in range(size):
            here, there = fork.Pipe(duplex=False)
            child = fork.Process(
                target=_rank, args=(rank_program, program, rank, size, folder, there)
            )
            child.start()
            there.close()
            links.append(here)
            children.append(child)
        answers = [_answer(link) for link in links]
        for child in children:
            child.join(5.0)
            child.kill()
            child.join()
            child.close()
        return answers


def _answer(link: Any) -> Answer:
    try:
        if not wait([link], scaled(RANK_SECONDS)):
            return Answer(None, f"no answer within {scaled(RANK_SECONDS)} s")
        return Answer(*link.recv())
    except EOFError:
        return Answer(None, "the process died")
    finally:
        link.close()


def _rank(
    rank_program: RankProgram, program: str, rank: int, size: int, folder: str, link: Any
) -> None:
    try:
        link.send((rank_program(program, rank, size, folder), None))
    except BaseException:  # noqa: BLE001  # reported, whatever it is
        link.send((None, traceback.format_exc()))
        link.close()
        os._exit(1)  # the others may wait for this one: let them see that it is gone
    link.close()


class ForkServer:
    """A process that runs a module which calls `serve`."""

    def __init__(self, module: str) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def run(self, program: str, size: int) -> list[Answer]:
        """Run the program on ``size`` ranks, and return their answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([program, size]), file=self._process.stdin, flush=True)
        return [Answer(*answer) for answer in json.loads(self._process.stdout.readline())]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._said.close()


def failures(answers: list[Answer], may_die: tuple[int, ...] = ()) -> str:
    """Return the tracebacks of the ranks that failed; empty if all succeeded."""
    return "\n\n".join(
        f"rank {rank}:\n{answer.error}"
        for rank, answer in enumerate(answers)
        if answer.error is not None and rank not in may_die
    )
