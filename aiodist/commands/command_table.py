"""The commands by name. A command's module is imported when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Protocol, cast

from aiodist.launch.args import Parser

COMMANDS = MappingProxyType[str, str](
    {
        "run": "start a script in N processes: aiodist run -n 4 train.py",
        "exec": "run a program of torch's under srun or mpiexec: srun -n 8 aiodist exec python train.py",
        "doctor": "examine this host, or the hosts of a job, and say what to set",
        "backends": "say which backends can run on this machine, and why not the others",
        "why": "ask a running job which rank waits for which: aiodist why [JOB]",
        "top": "show a running job live, rank by rank: aiodist top [JOB]",
        "dump": "read what the ranks dumped when something failed: aiodist dump DIR",
        "trace": "make one trace of all ranks, or a picture of it: aiodist trace DIR -o time.svg",
        "simulate": "run the collectives' algorithms on thousands of ranks, under a simulated clock",
        "bench": "measure how fast operations are here, beside Gloo: aiodist bench -n 4 all_reduce",
        "tune": "measure which algorithms are the fastest here: aiodist tune -n 4 -o table.json",
        "completion": "write a script by which a shell completes this: aiodist completion bash",
    }
)
"""Each command's line in ``aiodist --help``. Its module in this package has its name."""


class Command(Protocol):
    """What the module of a command has."""

    parser: Callable[[], Parser]
    """Return a new parser of the command's options."""
    main: Callable[[Sequence[str]], int]
    """Run the command; return the exit code. Raises DistError and OSError."""


def load(name: str) -> Command:
    """Import the module of a command of `COMMANDS`."""
    return cast(Command, importlib.import_module(f"aiodist.commands.{name}"))
