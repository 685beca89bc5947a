"""Find the ranks of a running job on this host, and ask all ranks of the job at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from aiodist.errors import DistError, InvalidUsageError
from aiodist.observe.job_names import jobs_called
from aiodist.observe.query_protocol import ask_all, ask_here, listener_at
from aiodist.observe.rank_report import Identity, RankReport, decode_report
from aiodist.observe.server import PREFIX
from aiodist.procfs import stat_fields

T = TypeVar("T")

_NAME = re.compile(rf"@({PREFIX}/(\d+)/([^/\s]+)/(\d+)-(\d+))$")
_TABLE = Path("/proc/net/unix")
_LONGEST_COMMAND = 60


@dataclass(frozen=True)
class Place:
    """Where a rank on this host answers: a name in the abstract namespace.

    ``pid``: the rank's own number of its process, in a container that of the container.
    """

    name: str
    rank: int
    pid: int

    def pid_here(self) -> int:
        """Return the number of the rank's process in this pid namespace, or 0 if it is not seen here."""
        try:
            return listener_at(self.name)
        except OSError:  # it has ended, or has more questions than it takes
            return self.pid


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The answers of the ranks that answered, and what is known of each of the others.

    ``moment``: when they were asked, on the clock of `monotonic`.
    """

    parts: dict[int, T]
    silent: dict[int, str]
    moment: float


def jobs_here(table: str | None = None) -> dict[str, list[Place]]:
    """Return the jobs that have ranks on this host, in this network namespace, from /proc/net/unix.

    Jobs of other users are left out, unless this user is root. Raises InvalidUsageError if there is
    no such table.
    """
    if table is None:
        if not _TABLE.exists():
            raise InvalidUsageError(f"running jobs are found by {_TABLE}, which this system lacks")
        # Other programs give their sockets any bytes as a name.
        table = _TABLE.read_text(encoding="utf-8", errors="replace")
    found: dict[str, dict[int, Place]] = {}
    for line in table.splitlines():
        match = _NAME.search(line)
        if match and os.geteuid() in (0, int(match[2])):
            place = Place(match[1], int(match[4]), int(match[5]))
            found.setdefault(match[3], {})[place.rank] = place
    return {job: [places[rank] for rank in sorted(places)] for job, places in found.items()}


def choose_job(jobs: Mapping[str, list[Place]], wanted: str | None) -> str:
    """Return the only job, or the one that ``wanted`` means; see `jobs_called`.

    Raises InvalidUsageError, which lists the jobs.
    """
    fitting = jobs_called(wanted, jobs)
    if len(fitting) == 1:
        return fitting[0]
    if not jobs:
        raise InvalidUsageError(
            "no rank of yours can be asked on this host: one can from the end of "
            "init_process_group until it destroys its process group, in its own network namespace"
        )
    shown = "\n".join(
        f"  {job}  (ranks here: {len(places)}{_command(places)})"
        for job, places in sorted(jobs.items())
    )
    problem = (
        f"no job here is called {wanted!r}" if wanted and not fitting else "several jobs run here"
    )
    raise InvalidUsageError(f"{problem}; name one of\n{shown}")


def _command(places: list[Place]) -> str:
    """Return the command line of the first rank's process, after a semicolon; "" if it is not known."""
    try:
        text = Path(f"/proc/{places[0].pid_here()}/cmdline").read_text(
            encoding="utf-8", errors="replace"
        )
    except (OSError, IndexError):
        return ""
    # The program of `python -c` is a word of several lines.
    words = text.replace("\0", " ").split()
    line = " ".join(Path(word).name if "/" in word else word for word in words)
    return f"; {line[:_LONGEST_COMMAND]}" if line else ""


def ask_job(job: str, places: list[Place], seconds: float) -> Answers[RankReport]:
    """Ask all ranks of ``job`` for their reports; see `ask_ranks`. Raises DistError if none answers."""
    answers = ask_ranks(places, {"ask": "part"}, decode_report, seconds)
    if not answers.parts:
        told = "; ".join(f"rank {rank}: {why}" for rank, why in answers.silent.items())
        raise DistError(f"no rank of job {job} on this host answers: {told}")
    return answers


def ask_ranks(
    places: list[Place], question: Mapping[str, Any], decode: Callable[[bytes], T], seconds: float
) -> Answers[T]:
    """Put ``question`` to all ranks of a job; return within ``seconds``, even if ranks are silent.

    Ranks on other hosts are asked through one that has answered; without one they are left out.
    """
    moment = monotonic()
    end = moment + seconds
    half = seconds / 2
    answers = ask_all(
        {place.rank: partial(ask_here, place.name, question) for place in places}, half
    )
    parts: dict[int, T] = {}
    silent: dict[int, str] = {}
    for place in places:
        answer = answers[place.rank]
        if isinstance(answer, bytes):
            parts[place.rank] = decode(answer)
        else:
            silent[place.rank] = _why_silent(place, answer, half)
    helper, all_ranks = _all_ranks([place for place in places if place.rank in parts], end)
    away = [each for each in all_ranks if each.rank not in parts and each.rank not in silent]
    if helper is not None and away:
        told_away = _ask_away(helper, away, question, max(0.1, end - monotonic()))
        for rank, answer_away in told_away.items():
            if isinstance(answer_away, str):
                silent[rank] = answer_away
            else:
                parts[rank] = decode(answer_away)
    return Answers(parts, silent, moment)


def _all_ranks(places: Sequence[Place], end: float) -> tuple[Place | None, list[Identity]]:
    """Return a rank of ``places`` that answers, and all ranks of the job; None if all have ended.

    ``end``: by when, on the clock of `monotonic`.
    """
    for place in places:
        try:
            answer = ask_here(place.name, {"ask": "ranks"}, max(0.1, end - monotonic()))
        except (OSError, EOFError, DistError):
            if monotonic() > end:
                break
            continue  # it has ended since its first answer
        return place, [Identity(**each) for each in json.loads(answer)]
    return None, []


def _ask_away(
    helper: Place, away: list[Identity], question: Mapping[str, Any], seconds: float
) -> dict[int, bytes | str]:
    """Let ``helper`` ask the ranks without a socket here, which are on other hosts or have ended.

    Return each rank's answer, or a sentence that says why it has none.
    """
    relayed = {
        "ask": "relay",
        "ranks": [each.rank for each in away],
        "seconds": seconds * 0.8,  # the rest is for the way back
        "to": question,
    }
    try:
        told = json.loads(ask_here(helper.name, relayed, seconds))
    except (OSError, EOFError, DistError) as error:
        told = {str(each.rank): {"error": str(error)} for each in away}
    answers: dict[int, bytes | str] = {}
    for each in away:
        facts = told.get(str(each.rank))
        where = f"process {each.pid} on {each.host}"
        if facts is None:
            answers[each.rank] = f"{where} has ended, or destroyed its process group"
        elif "error" in facts:
            answers[each.rank] = f"{where}: {facts['error']}"
        else:
            answers[each.rank] = json.dumps(facts).encode()
    return answers


def _why_silent(place: Place, error: BaseException, seconds: float) -> str:
    pid = place.pid_here()
    if not pid:
        return f"process {place.pid} of another pid namespace: {error}"
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
        return stat_fields(pid)[0]
    except OSError:
        return ""
