"""Start a job from a command line, with a sentence for each mistake in it."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

from aiodist.errors import DistError, InvalidUsageError, remedy_for
from aiodist.launch.args import Parser, job_spec, misplaced_count
from aiodist.launch.spec import JobSpec
from aiodist.launch.supervisor import run_job

USAGE_ERROR = 2


def start(
    parser: Parser,
    argv: Sequence[str],
    run: Callable[[argparse.Namespace, JobSpec], int] = lambda _, spec: run_job(spec),
) -> int:
    """Parse ``argv`` and ``run`` the job; return the exit code. Errors are told on stderr."""
    try:
        args = parser.read(argv)
        spec = job_spec(args, dict(os.environ))
        word = misplaced_count(args)
        if word is not None:
            count = len(spec.places())
            starting = "1 process starts" if count == 1 else f"{count} processes start"
            say(f"{word} stands after the script's name and goes to the script; {starting}")
        return run(args, spec)
    except InvalidUsageError as error:
        say(f"{error}\n{parser.prog} --help shows the options")
        return USAGE_ERROR
    except DistError as error:
        say(str(error))
        return USAGE_ERROR
    except OSError as error:
        # A system without room for another process says EAGAIN.
        otherwise = "raise the limit on processes: ulimit -u" if error.errno == errno.EAGAIN else ""
        advice = remedy_for(error, otherwise)
        say("; ".join(filter(None, (f"the system refuses to start the ranks: {error}", advice))))
        return 1


def say(text: str) -> None:
    """Write lines to stderr, each after ``aiodist:``."""
    for line in text.splitlines():
        sys.stderr.write(f"aiodist: {line}\n")
    sys.stderr.flush()


def open_standard_streams() -> None:
    """Open the null device in place of each standard stream that the process was started without.

    Its descriptor would else be that of the next file or socket. A character that stdout cannot
    encode is escaped.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  # until the end
            if stream.fileno() == number:
                os.set_inheritable(number, True)  # by ranks
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr does: a line of a program may have any
        sys.stdout.reconfigure(errors="backslashreplace")
