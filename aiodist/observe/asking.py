"""``aiodist why``: find the ranks of a running job on this host, and ask them all at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from aiodist.errors import DistError, InvalidUsageError
from aiodist.observe.query_protocol import all_at_once, ask_here, is_trusted
from aiodist.observe.rank_report import Identity, RankReport, decode_report
from aiodist.observe.server import PREFIX

_NAME = re.compile(rf"@({PREFIX}/(\d+)/([^/\s]+)/(\d+)-(\d+))$")
_TABLE = Path("/proc/net/unix")


@dataclass(frozen=True)
class Place:
    """Where a rank on this host answers: a name in the abstract namespace."""

    name: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Answers:
    """The reports of the ranks that answered, and what is known of each of the others."""

    job: str
    parts: dict[int, RankReport]
    silent: dict[int, str]


def jobs_here(table: str | None = None) -> dict[str, list[Place]]:
    """Return the jobs that have ranks on this host, in this network namespace, from /proc/net/unix.

    Jobs of other users are left out. Raises InvalidUsageError if there is no such table.
    """
    if table is None:
        if not _TABLE.exists():
            raise InvalidUsageError(f"running jobs are found by {_TABLE}, which this system lacks")
        table = _TABLE.read_text()
    found: dict[str, dict[int, Place]] = {}
    for line in table.splitlines():
        match = _NAME.search(line)
        if match and (is_trusted(int(match[2])) or os.geteuid() == 0):
            place = Place(match[1], int(match[4]), int(match[5]))
            found.setdefault(match[3], {})[place.rank] = place
    return {job: [places[rank] for rank in sorted(places)] for job, places in found.items()}


def choose_job(jobs: Mapping[str, list[Place]], wanted: str | None) -> str:
    """Return the only job, or the one whose name is, or begins with, ``wanted``.

    Raises InvalidUsageError, which lists the jobs.
    """
    fitting = sorted(job for job in jobs if wanted is None or job.startswith(wanted))
    if wanted is not None and wanted in jobs:
        return wanted
    if len(fitting) == 1:
        return fitting[0]
    if not jobs:
        raise InvalidUsageError(
            "no job of yours runs on this host: a rank can be asked from init_process_group on, "
            "until it destroys its process group"
        )
    shown = "\n".join(f"  {job}  (ranks here: {len(jobs[job])})" for job in sorted(jobs))
    problem = (
        f"no job here is called {wanted!r}" if wanted and not fitting else "several jobs run here"
    )
    raise InvalidUsageError(f"{problem}; name one of\n{shown}")


def ask_job(job: str, places: list[Place], seconds: float) -> Answers:
    """Ask all ranks of ``job``; return within ``seconds``, even if ranks do not answer.

    Ranks on other hosts are asked through one that has answered. Raises DistError if no rank
    answers.
    """
    end = monotonic() + seconds
    half = seconds / 2
    answers = all_at_once(
        {place.rank: partial(ask_here, place.name, {"ask": "part"}, half) for place in places}
    )
    parts: dict[int, RankReport] = {}
    silent: dict[int, str] = {}
    for place in places:
        answer = answers[place.rank]
        if isinstance(answer, bytes):
            parts[place.rank] = decode_report(answer)
        else:
            silent[place.rank] = _why_silent(place.pid, answer, half)
    if not parts:
        told = "; ".join(f"rank {rank}: {why}" for rank, why in silent.items())
        raise DistError(f"no rank of job {job} on this host answers: {told}")
    helper = next(place for place in places if place.rank in parts)
    everybody = _everybody(helper, max(0.1, end - monotonic()))
    away = [each for each in everybody if each.rank not in parts and each.rank not in silent]
    if away:
        _ask_away(helper, away, parts, silent, max(0.1, end - monotonic()))
    return Answers(job, parts, silent)


def _everybody(helper: Place, seconds: float) -> list[Identity]:
    answer = ask_here(helper.name, {"ask": "ranks"}, seconds)
    return [Identity(**each) for each in json.loads(answer)]


def _ask_away(
    helper: Place,
    away: list[Identity],
    parts: dict[int, RankReport],
    silent: dict[int, str],
    seconds: float,
) -> None:
    """Let ``helper`` ask the ranks without a socket here, which are on other hosts or have ended."""
    question = {
        "ask": "relay",
        "ranks": [each.rank for each in away],
        "seconds": seconds * 0.8,  # the rest is for the way back
    }
    try:
        told = json.loads(ask_here(helper.name, question, seconds))
    except (OSError, EOFError, DistError) as error:
        told = {str(each.rank): {"error": str(error)} for each in away}
    for each in away:
        facts = told.get(str(each.rank))
        where = f"process {each.pid} on {each.host}"
        if facts is None:
            silent[each.rank] = f"{where} has ended, or destroyed its process group"
        elif "error" in facts:
            silent[each.rank] = f"{where}: {facts['error']}"
        else:
            parts[each.rank] = decode_report(json.dumps(facts).encode())


def _why_silent(pid: int, error: Exception, seconds: float) -> str:
    state = _state(pid)
    if state in ("", "Z", "X"):
        return f"process {pid} has ended"
    if state in ("T", "t"):
        return f"process {pid} is stopped, as by SIGSTOP or a debugger; kill -CONT {pid} goes on"
    if isinstance(error, TimeoutError):
        return (
            f"process {pid} runs, and said nothing for {seconds:g} s: native code may hold the GIL"
        )
    return f"process {pid}: {error}"


def _state(pid: int) -> str:
    """Return the letter for the process's state in /proc, or "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
