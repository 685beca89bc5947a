"""The console script ``aiodist`` and the module ``aiodist.launch``."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

from aiodist.errors import DistError, InvalidUsageError
from aiodist.launch.args import Parser, job_spec, launch_parser, misplaced_count, run_parser
from aiodist.launch.backends import backends_main
from aiodist.launch.doctor import doctor_main
from aiodist.launch.executing import exec_main
from aiodist.launch.observing import dump_main, run_traced, trace_main, why_main
from aiodist.launch.simulating import simulate_main
from aiodist.launch.supervisor import run_job
from aiodist.launch.tuning import tune_main

USAGE_ERROR = 2

_COMMANDS = MappingProxyType[str, Callable[[Sequence[str]], int]](
    {
        "exec": exec_main,
        "dump": dump_main,
        "trace": trace_main,
        "why": why_main,
        "doctor": doctor_main,
        "backends": backends_main,
        "simulate": simulate_main,
        "tune": tune_main,
    }
)

HELP = """\
usage: aiodist COMMAND ...

  run        start a script in N processes: aiodist run -n 4 train.py
  exec       run a program of torch's under srun or mpiexec: srun -n 8 aiodist exec python train.py
  doctor     examine this host, or the hosts of a job, and say what to set
  backends   say which backends can run on this machine, and why not the others
  why        ask a running job which rank waits for whom: aiodist why [JOB]
  dump       read what the ranks dumped when something failed: aiodist dump DIR
  trace      make a trace for ui.perfetto.dev of all ranks: aiodist trace DIR -o trace.json
  simulate   run the collectives' algorithms on thousands of ranks, under a simulated clock
  tune       measure which algorithms are the fastest here: aiodist tune -n 4 -o table.json
  --version  say which aiodist this is

'aiodist COMMAND --help' shows the options.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """``aiodist COMMAND ...``; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command == "run":
        return _run(run_parser(), rest)
    if command in _COMMANDS:
        return _ask(command, rest)
    if command in ("-h", "--help", "help"):
        sys.stdout.write(HELP)
        return 0
    if command in ("-V", "--version"):
        sys.stdout.write(f"aiodist {_version()}\n")
        return 0
    if not command:
        sys.stderr.write(HELP)
    elif command.endswith(".py"):
        _say(f"there is no command {command!r}; to start a script: aiodist run {command}")
    elif close := difflib.get_close_matches(command, ["run", *_COMMANDS], n=1):
        _say(f"there is no command {command!r}: did you mean 'aiodist {close[0]}'?")
    else:
        _say(f"there is no command {command!r}")
        sys.stderr.write(HELP)
    return USAGE_ERROR


def _ask(command: str, rest: Sequence[str]) -> int:
    try:
        return _COMMANDS[command](rest)
    except InvalidUsageError as error:
        _say(f"{error}\naiodist {command} --help shows the options")
        return USAGE_ERROR
    except (DistError, OSError) as error:
        _say(str(error))
        return 1


def launch_main(argv: Sequence[str] | None = None) -> int:
    """``python -m aiodist.launch ...``; returns the exit code."""
    return _run(launch_parser(), sys.argv[1:] if argv is None else argv)


def _run(parser: Parser, argv: Sequence[str]) -> int:
    try:
        args = parser.read(argv)
        spec = job_spec(args, dict(os.environ))
        word = misplaced_count(args)
        if word is not None:
            _say(f"{word} stands after the script's name and goes to the script; 1 process starts")
        return run_traced(spec, Path(args.trace)) if args.trace else run_job(spec)
    except InvalidUsageError as error:
        _say(f"{error}\n{parser.prog} --help shows the options")
        return USAGE_ERROR
    except DistError as error:
        _say(str(error))
        return USAGE_ERROR
    except OSError as error:
        _say(f"the system refuses to start the ranks: {error}")
        return 1


def _say(text: str) -> None:
    for line in text.splitlines():
        sys.stderr.write(f"aiodist: {line}\n")
    sys.stderr.flush()


def _version() -> str:
    try:
        return importlib.metadata.version("aiodist")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
