"""``aiodist completion``: a script by which a shell completes the command line of ``aiodist``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from aiodist.bench.cases import OPERATIONS
from aiodist.collectives.rule_tables import TUNABLE
from aiodist.commands.command_table import COMMANDS, load
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.simulate import operations

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "script", "program"})
_FOLDERS = frozenset({"DIR"})
_JOBS = "aiodist why --jobs 2>/dev/null"
"""The command by which a shell finds the names of the running jobs."""


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist completion",
        description="Write a script by which a shell completes commands, options, files, and the "
        "names of operations and of running jobs. It needs the "
        "package shtab (pip install 'aiodist[completion]') when it is written, not when it is used.",
        examples=(
            "aiodist completion bash > ~/.local/share/bash-completion/completions/aiodist",
            "aiodist completion zsh > ~/.zfunc/_aiodist     with fpath+=~/.zfunc before compinit",
            "aiodist completion fish > ~/.config/fish/completions/aiodist.fish",
        ),
    )
    made.add_argument("shell", choices=SHELLS, help="whose script to write")
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist completion SHELL``; returns the exit code."""
    shell = parser().read(argv).shell
    if importlib.util.find_spec("shtab") is None:
        raise InvalidUsageError(
            "the package shtab writes these scripts, and it is not installed: "
            "pip install 'aiodist[completion]'"
        )
    import shtab

    whole = whole_parser(shtab.FILE, shtab.DIRECTORY, shtab.cmd(_JOBS))
    sys.stdout.write(shtab.complete(whole, shell) + "\n")
    return 0


def whole_parser(file: Any, folder: Any, job: Any) -> argparse.ArgumentParser:
    """Return one parser of all commands.

    ``file``, ``folder``, ``job``: how shtab completes such arguments.
    """
    by_command = {"bench": OPERATIONS, "simulate": operations(), "tune": TUNABLE}

    def make(*, command: str, **_: Any) -> argparse.ArgumentParser:
        return load(command).parser()

    whole = argparse.ArgumentParser(prog="aiodist", description="torch.distributed, awaitable")
    whole.add_argument("--version", action="store_true", help="say which aiodist this is")
    maker: Any = make  # a class in argparse's types, and any callable in its documentation
    commands = whole.add_subparsers(dest="command", parser_class=maker)
    for name, summary in COMMANDS.items():
        made = commands.add_parser(name, command=name, help=summary)
        made.description = summary.partition(":")[0]  # shells show it in a line
        for action in made._actions:
            label = action.metavar or action.dest
            completed: Any = action  # shtab reads an attribute that argparse does not have
            if label in _FILES:
                completed.complete = file
            elif label in _FOLDERS:
                completed.complete = folder
            elif label == "job" and not action.option_strings:
                completed.complete = job
            elif label == "OPERATION":
                completed.choices = tuple(by_command[name])
    return whole
