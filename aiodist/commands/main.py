"""The console script ``aiodist``."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Sequence

from aiodist.commands.command_table import COMMANDS, load
from aiodist.errors import DistError, InvalidUsageError
from aiodist.launch.starting import USAGE_ERROR, open_standard_streams, say

_HELP = frozenset({"-h", "--help", "help"})


def main(argv: Sequence[str] | None = None) -> int:
    """``aiodist COMMAND ...``; returns the exit code."""
    open_standard_streams()
    try:
        try:
            return _chosen(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # here, where an error is told; after --help, too
    except BrokenPipeError:  # the reader of the output has ended: aiodist top | head
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:  # as on a full disk
        _discard_output()
        say(f"cannot write the output: {error}")
        return 1


def _discard_output() -> None:
    """Let what is left in the buffer of stdout go nowhere when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _chosen(argv: Sequence[str]) -> int:
    """Carry out what the command line asks for; return the exit code."""
    command, *rest = argv or [""]
    if command in _HELP and rest:
        command, rest = rest[0], ["--help"]
    if command in COMMANDS:
        return _carry_out(command, rest)
    if command in _HELP:
        sys.stdout.write(help_text())
        return 0
    if command in ("-V", "--version"):
        sys.stdout.write(f"aiodist {version_of('aiodist')}\n")
        return 0
    if not command:
        sys.stderr.write(help_text())
    elif command.endswith(".py"):
        say(f"there is no command {command!r}; to start a script: aiodist run {command}")
    elif close := difflib.get_close_matches(command, COMMANDS, n=1):
        say(f"there is no command {command!r}: did you mean 'aiodist {close[0]}'?")
    else:
        say(f"there is no command {command!r}")
        sys.stderr.write(help_text())
    return USAGE_ERROR


def help_text() -> str:
    """Return what ``aiodist --help`` prints."""
    rows = {**COMMANDS, "--version": "say which aiodist this is"}
    width = max(map(len, rows))
    lines = "".join(f"  {name.ljust(width)}  {summary}\n" for name, summary in rows.items())
    return (
        f"usage: aiodist COMMAND ...\n\n{lines}\n"
        "'aiodist COMMAND --help' shows the options, with examples.\n"
    )


def _carry_out(command: str, rest: Sequence[str]) -> int:
    try:
        return load(command).main(rest)
    except InvalidUsageError as error:
        say(f"{error}\naiodist {command} --help shows the options")
        return USAGE_ERROR
    except BrokenPipeError:  # an OSError that `main` handles
        raise
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (DistError, OSError) as error:
        say(str(error))
        return 1


def version_of(package: str) -> str:
    """Return the version of an installed package, or that it is not installed."""
    from importlib import metadata  # not above: few commands need it, and it imports email

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
