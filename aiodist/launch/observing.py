"""``aiodist dump``, ``aiodist trace``, ``aiodist why``: what the ranks of a job say together."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.launch.spec import JobSpec
from aiodist.launch.supervisor import run_job
from aiodist.observe.asking import ask_job, choose_job, jobs_here
from aiodist.observe.comparing import GroupStory, stories
from aiodist.observe.folder import Dump, read_parts
from aiodist.observe.rank_report import SO_FAR, RankReport
from aiodist.observe.recorder import TRACE_VARIABLE
from aiodist.observe.report_text import overview, sentences
from aiodist.observe.trace import chrome_trace
from aiodist.observe.waiting import judge


def dump_main(argv: Sequence[str]) -> int:
    """``aiodist dump DIR``; returns the exit code: 0, whatever the dump says."""
    parser = Parser(
        prog="aiodist dump",
        description="Read the parts that all ranks have dumped into a folder, and say which rank "
        "is behind and where the ranks begin to differ.",
    )
    parser.add_argument("folder", metavar="DIR", help="what AIODIST_DUMP_DIR was")
    parser.add_argument("--job", help="of this job, or one that begins so (default: the latest)")
    args = parser.read(argv)
    sys.stdout.write(report(read_parts(args.folder, args.job)))
    return 0


def trace_main(argv: Sequence[str]) -> int:
    """``aiodist trace DIR -o FILE``; returns the exit code."""
    parser = Parser(
        prog="aiodist trace",
        description="Make one trace of all ranks, on one clock, for ui.perfetto.dev or Chrome.",
    )
    parser.add_argument(
        "folder", metavar="DIR", help="what AIODIST_TRACE_DIR (or AIODIST_DUMP_DIR) was"
    )
    parser.add_argument(
        "-o", "--output", default="trace.json", metavar="FILE", help="(default trace.json)"
    )
    parser.add_argument("--job", help="of this job, or one that begins so (default: the latest)")
    args = parser.read(argv)
    sys.stderr.write(write_trace(read_parts(args.folder, args.job), Path(args.output)))
    return 0


def why_main(argv: Sequence[str]) -> int:
    """``aiodist why [JOB]``; returns the exit code."""
    parser = Parser(
        prog="aiodist why",
        description="Ask the ranks of a running job on this host, and through them those on other "
        "hosts, which rank waits for which.",
    )
    parser.add_argument(
        "job",
        nargs="?",
        help="AIODIST_RUN_ID, or how the job's name begins; the only one if left out",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="a rank that has not answered by then is named as silent (default 5)",
    )
    args = parser.read(argv)
    if not args.timeout > 0:
        raise InvalidUsageError(f"--timeout must be a positive number, not {args.timeout}")
    jobs = jobs_here()
    job = choose_job(jobs, args.job)
    answers = ask_job(job, jobs[job], args.timeout)
    told = stories(answers.parts)
    lines = [f"job {job}", *_situation(answers.parts, answers.silent, told)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def run_traced(spec: JobSpec, path: Path) -> int:
    """Run a job as `run_job` does, and leave a trace of its ranks in ``path``; the exit code."""
    path.touch()  # else it may turn out after hours that it cannot be written
    with tempfile.TemporaryDirectory(prefix="aiodist-trace-") as folder:
        environment = {**spec.environment, TRACE_VARIABLE: folder}
        code = run_job(replace(spec, environment=environment))
        try:
            sys.stderr.write(write_trace(read_parts(folder), path))
        except InvalidUsageError:
            sys.stderr.write(
                "aiodist: no rank has left a trace: none was in a group for a second\n"
            )
    return code


def write_trace(dump: Dump, path: Path) -> str:
    """Write the trace of ``dump``; what there is to say about it, in lines. Raises OSError."""
    trace = chrome_trace(dump.parts)
    path.write_text(json.dumps(trace))
    count = sum(len(part.operations) for part in dump.parts.values())
    told = f"aiodist: {count} operations of {len(dump.parts)} ranks are in {path}"
    errors = trace["otherData"]["clock_error_us"].values()
    if any(error is None for error in errors):
        told += "; some clocks are aligned by the calendar time of their hosts only"
    elif any(errors):
        told += f"; clocks agree to {max(errors):.0f} us"
    cut = {
        rank: f"was killed, or still runs: its last {len(part.operations)} operations are there, as "
        "they were a second or so before"
        for rank, part in dump.parts.items()
        if part.reason == SO_FAR
    }
    missing = "".join(f"aiodist: rank {rank}: {why}\n" for rank, why in (cut | dump.silent).items())
    return f"{told}\n{missing}"


def report(dump: Dump) -> str:
    """What a dump says: each rank, the verdict, each group."""
    lines = [f"job {dump.job}: {len(dump.parts)} of {dump.size} ranks have written a part"]
    if dump.others:
        lines.append(f"(the folder has parts of other jobs: {', '.join(dump.others)}; see --job)")
    reasons: dict[str, int] = {}
    for rank, part in sorted(dump.parts.items(), key=lambda pair: pair[1].wall):
        reasons.setdefault(part.reason, rank)
    lines += [f"because (rank {rank}): {reason}" for reason, rank in reasons.items()]
    told = stories(dump.parts)
    lines += _situation(dump.parts, dump.silent, told)
    for story in told:
        lines += ["", str(story)]
    return "\n".join(lines) + "\n"


def _situation(
    parts: Mapping[int, RankReport], silent: Mapping[int, str], told: Sequence[GroupStory]
) -> list[str]:
    """Return text for each rank's operation, then disagreements, then the ranks others wait for."""
    verdict = judge(parts)
    disagreements = [story.disagreement for story in told if story.disagreement]
    return [
        "",
        overview(verdict, parts, silent),
        "",
        *disagreements,
        *sentences(verdict, parts, silent),
    ]
