"""``aiodist top``: what each rank of a running job does, live."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiodist.commands.terminal import BOLD, RED, YELLOW, Frames, coloured, has_colours
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.launch.quantities import bytes_text, count_text
from aiodist.observe.asking import Answers, ask_ranks, choose_job, jobs_here
from aiodist.observe.load import RankLoad, loads, slowest
from aiodist.observe.text_table import ranges, ranks, table
from aiodist.observe.usage import Usage, decode_usage

FIRST_SECONDS = 0.5
"""The most seconds before the first snapshot."""

ANSWER_SECONDS = 2.0
"""Ranks that have not answered by then are shown as silent."""


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist top",
        description="Show a running job live: for each rank its operation, bytes a second, the share "
        "of time in which it waits for others, and memory; and which rank holds up the others. On a "
        "terminal it is drawn in place until q or Ctrl-C.",
        examples=(
            "aiodist top                   the only job on this host",
            "aiodist top exp1 -i 5         a job by its name, every 5 seconds",
            "aiodist top --once --json     one measurement, for scripts",
        ),
    )
    made.add_argument(
        "job",
        nargs="?",
        help="AIODIST_RUN_ID, or how the job's name begins; the only one if left out",
    )
    made.add_argument(
        "-i",
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two pictures, and the time they are measured over (default 1)",
    )
    made.add_argument("--once", action="store_true", help="measure one interval, and end")
    made.add_argument("--json", action="store_true", help="a JSON object a line, not a table")
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist top [JOB]``; returns the exit code."""
    args = parser().read(argv)
    if not 0.05 <= args.interval <= 3600:
        raise InvalidUsageError(f"--interval must be from 0.05 to 3600, not {args.interval:g}")
    job = choose_job(jobs_here(), args.job)
    colours = has_colours(sys.stdout)
    before = _ask(job, 0.0)
    try:
        with Frames(sys.stdout) as frames:
            pause = args.interval if args.once else min(args.interval, FIRST_SECONDS)
            while not frames.wait(pause):
                pause = args.interval
                if job not in jobs_here():
                    sys.stderr.write(f"aiodist: job {job} has ended on this host\n")
                    return 0
                now = _ask(job, time.monotonic() - before.moment)
                snapshot = Snapshot.of(job, before, now)
                if args.json:
                    frames.print(json.dumps(snapshot.facts()))
                else:
                    frames.draw(snapshot.lines(frames.width, frames.height, colours=colours))
                before = now
                if args.once:
                    break
    except KeyboardInterrupt:
        pass  # it is how one ends it
    return 0


def _ask(job: str, seconds: float) -> Answers[Usage]:
    """Ask all ranks what they have done for ``seconds``, since the question before, and a bit more."""
    question = {"ask": "usage", "seconds": seconds + 0.2}
    return ask_ranks(jobs_here().get(job, []), question, decode_usage, ANSWER_SECONDS)


@dataclass(frozen=True)
class Snapshot:
    """A job between two moments. ``loads`` lacks ranks that have not answered twice."""

    job: str
    size: int
    seconds: float
    usages: Mapping[int, Usage]
    loads: Mapping[int, RankLoad]
    silent: Mapping[int, str]

    @classmethod
    def of(cls, job: str, before: Answers[Usage], now: Answers[Usage]) -> Snapshot:
        """Compare two answers of the ranks."""
        sizes = [usage.identity.size for usage in now.parts.values()]
        return cls(
            job,
            max([*sizes, len(now.parts) + len(now.silent)]),
            now.moment - before.moment,
            now.parts,
            loads(before.parts, now.parts),
            now.silent,
        )

    def facts(self) -> dict[str, Any]:
        """Return it as JSON can hold it; `docs/observability.md` lists the fields."""
        return {
            "job": self.job,
            "ranks": self.size,
            "time": time.time(),
            "seconds": self.seconds,
            "slowest": slowest(self.loads),
            "rank": [self._facts(rank) for rank in sorted(self.usages.keys() | self.silent.keys())],
        }

    def _facts(self, rank: int) -> dict[str, Any]:
        if rank in self.silent:
            return {"rank": rank, "silent": self.silent[rank]}
        usage, load = self.usages[rank], self.loads.get(rank)
        return {
            "rank": rank,
            "pid": usage.identity.pid,
            "host": usage.identity.host,
            "memory": usage.memory,
            "peak_memory": usage.peak_memory,
            "place": usage.place,
            "current": None if usage.current is None else asdict(usage.current),
            **({} if load is None else asdict(load)),
        }

    def lines(self, width: int | None, height: int | None = None, *, colours: bool) -> list[str]:
        """Return the text, each line at most ``width`` columns.

        Of more ranks than fit into ``height`` lines, the silent ones and the slowest stay.
        """
        worst = slowest(self.loads)
        numbers = sorted(self.usages.keys() | self.silent.keys())
        conclusion = self._conclusion(worst)
        told = [conclusion] if width is None else textwrap.wrap(conclusion, width)
        room = len(numbers) if height is None else max(2, height - _FIXED_LINES - len(told))
        left_out: list[str] = []
        if len(numbers) > room:
            numbers.sort(key=lambda rank: (rank not in self.silent, rank != worst, rank))
            left_out = [f"and {len(numbers) - room + 1} more ranks"]
            numbers = sorted(numbers[: room - 1])
        head, *rows = table([_HEAD, *map(self._row, numbers)]).splitlines()
        clock = time.strftime("%H:%M:%S")
        size = "1 rank" if self.size == 1 else f"{self.size} ranks"
        found = f"job {self.job}: {size}, {clock}, the last {self.seconds:.1f} s"
        lines = [_cut(found, width), "", coloured(_cut(head, width), BOLD, on=colours)]
        for rank, row in zip(numbers, rows, strict=True):
            codes = [RED] if rank in self.silent else [YELLOW] if rank == worst else []
            lines.append(coloured(_cut(row, width), *codes, on=colours))
        codes = [YELLOW] * (worst is not None)
        return [*lines, *left_out, "", *(coloured(line, *codes, on=colours) for line in told)]

    def _row(self, rank: int) -> tuple[str, ...]:
        if rank in self.silent:
            blank = ("",) * (len(_HEAD) - 3)
            return (str(rank), "?", *blank, f"no answer: {self.silent[rank]}")
        usage, load = self.usages[rank], self.loads.get(rank)
        place = str(rank), f"{usage.identity.pid} on {usage.identity.host}"
        if load is None:
            measured = ("",) * 7
        else:
            about = "~" if load.is_sample else ""
            measured = (
                f"{load.cpu:.0%}",
                count_text(load.operations),
                about + bytes_text(load.sent),
                about + bytes_text(load.received),
                f"{load.waiting:.0%}",
                f"{load.moving:.0%}",
                f"{load.holds_up:.0%}",
            )
        return (*place, bytes_text(usage.memory), *measured, _now(usage))

    def _conclusion(self, worst: int | None) -> str:
        if self.silent:
            return f"{ranks(sorted(self.silent), capital=True)}: no answer."
        if worst is None:
            return "No rank holds up the others."
        usage = self.usages[worst]
        place = f" It is at {usage.place}." if usage.place else ""
        share = self.loads[worst].holds_up
        return (
            f"Rank {worst} is the slowest: the others waited for it {share:.0%} of the time.{place}"
        )


_FIXED_LINES = 4
"""Lines of a snapshot besides its rows and what it concludes."""

_HEAD = (
    "rank",
    "process",
    "memory",
    "cpu",
    "ops/s",
    "out/s",
    "in/s",
    "waiting",
    "moving",
    "holds up",
    "now",
)


def _now(usage: Usage) -> str:
    if usage.current is None:
        return f"no operation, at {usage.place}" if usage.place else "no operation"
    current = usage.current
    others = [rank for rank in current.waiting_for if rank != usage.identity.rank]
    waits = f", waits for {ranges(others)}" if others else ""
    since = f" for {current.seconds:.1f} s" if current.seconds >= 0.1 else ""
    return f"{current.call}{since}{waits}"


def _cut(line: str, width: int | None) -> str:
    return line if width is None else line[:width]
