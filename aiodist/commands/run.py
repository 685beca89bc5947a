"""``aiodist run``: start a script in N processes, and stop all when one fails."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiodist.commands.output_file import check_output
from aiodist.commands.trace import check_kind, write_trace
from aiodist.errors import DistError, InvalidUsageError
from aiodist.launch.args import run_parser as parser
from aiodist.launch.spec import JobSpec
from aiodist.launch.starting import say, start
from aiodist.launch.supervisor import run_job
from aiodist.observe.folder import read_parts
from aiodist.observe.recorder import TRACE_VARIABLE


def main(argv: Sequence[str]) -> int:
    """``aiodist run``; returns the exit code of the job."""
    return start(parser(), argv, _run)


def _run(args: argparse.Namespace, spec: JobSpec) -> int:
    """Run a job as `run_job` does, and leave a trace of its ranks in the file of ``--trace``.

    Returns the exit code: that of the job, or 1 if only the trace failed.
    """
    if not args.trace:
        return run_job(spec)
    path = Path(args.trace)
    check_kind(path)
    check_output("--trace", path)
    with tempfile.TemporaryDirectory(prefix="aiodist-trace-") as folder:
        environment = {**spec.environment, TRACE_VARIABLE: folder}
        code = run_job(replace(spec, environment=environment))
        try:
            told = write_trace(
                read_parts(folder),
                path,
                f"the ranks met more than once; set {TRACE_VARIABLE}=DIR in place of --trace, and "
                "choose by aiodist trace DIR --job",
            )
            sys.stderr.write(told)
        except InvalidUsageError:
            say(
                "no rank has left a trace: none was in a group for a second, or none could write to "
                f"{folder} (TMPDIR names another place)"
            )
        except (DistError, OSError) as error:  # as on a full disk
            say(f"the trace cannot be written to {path}: {error}")
            return code or 1
    return code
