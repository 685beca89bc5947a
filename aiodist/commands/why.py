"""``aiodist why``: which rank of a running job waits for which."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.observe.asking import ask_job, choose_job, jobs_here
from aiodist.observe.comparing import group_reports
from aiodist.observe.report_text import situation


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist why",
        description="Ask the ranks of a running job on this host, and through them those on other "
        "hosts, which rank waits for which.",
        examples=(
            "aiodist why          the only job on this host",
            "aiodist why exp1     a job by its name, which aiodist run --tag exp1 gives it",
        ),
    )
    made.add_argument(
        "job",
        nargs="?",
        help="AIODIST_RUN_ID, or how the job's name begins; the only one if left out",
    )
    made.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="a rank that has not answered by then is named as silent (default 5)",
    )
    made.add_argument(
        "--jobs", action="store_true", help="write the names of your jobs on this host, one a line"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist why [JOB]``; returns the exit code."""
    args = parser().read(argv)
    if not 0 < args.timeout <= 3600:
        raise InvalidUsageError(f"--timeout must be above 0 and at most 3600, not {args.timeout:g}")
    jobs = jobs_here()
    if args.jobs:
        sys.stdout.writelines(f"{job}\n" for job in sorted(jobs))
        return 0
    job = choose_job(jobs, args.job)
    answers = ask_job(job, jobs[job], args.timeout)
    told = group_reports(answers.parts)
    lines = [f"job {job}", *situation(answers.parts, answers.silent, told)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
