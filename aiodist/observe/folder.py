"""The reports of a dump as files: one per rank, replaced as a whole, read together."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.observe.job_names import jobs_called
from aiodist.observe.rank_report import RankReport, decode_report

_NAME = "aiodist-{job}-rank{rank}.json"
_PATTERN = re.compile(r"aiodist-(.+)-rank(\d+)\.json")


def write_part(directory: str | os.PathLike[str], part: RankReport) -> Path:
    """Write ``part`` over this rank's earlier report in ``directory``, which is made if needed.

    Readers see the old report or the new one. Raises OSError, and then leaves nothing of the new one.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _NAME.format(job=part.identity.job, rank=part.rank)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(part.encode())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


@dataclass(frozen=True)
class Dump:
    """The reports of one job by rank. ``others``: jobs that also have files in the folder."""

    job: str
    parts: dict[int, RankReport]
    others: tuple[str, ...]

    @property
    def size(self) -> int:
        return max(part.identity.size for part in self.parts.values())

    @property
    def silent(self) -> dict[int, str]:
        """Return the ranks that have written nothing."""
        return {
            rank: "it has written no part" for rank in range(self.size) if rank not in self.parts
        }


def read_parts(directory: str | os.PathLike[str], job: str | None = None) -> Dump:
    """Return the reports of the job that wrote last, among those that ``job`` means if it is given.

    See `jobs_called`. Raises InvalidUsageError for a folder without any, and ProtocolError for a
    malformed file.
    """
    folder = Path(directory)
    if not folder.is_dir():
        what = (
            f"{str(folder)!r} is a file"
            if folder.exists()
            else f"there is no folder {str(folder)!r}"
        )
        raise InvalidUsageError(
            f"{what}; name the folder that AIODIST_DUMP_DIR or AIODIST_TRACE_DIR named when the job ran"
        )
    files = [(match, path) for path in folder.iterdir() if (match := _PATTERN.fullmatch(path.name))]
    jobs: dict[str, list[Path]] = {}
    for match, path in files:
        jobs.setdefault(match[1], []).append(path)
    chosen = _choose(jobs, job, folder)
    parts = {}
    for path in jobs[chosen]:
        try:
            part = decode_report(path.read_bytes())
        except ProtocolError as error:
            raise ProtocolError(f"{path}: {error}; move it away to see the other ranks") from None
        parts[part.rank] = part
    return Dump(chosen, parts, tuple(sorted(jobs.keys() - {chosen})))


def _choose(jobs: dict[str, list[Path]], job: str | None, folder: Path) -> str:
    if not jobs:
        raise InvalidUsageError(
            f"folder {str(folder)!r} has no part of a dump (aiodist-JOB-rankN.json): set "
            "AIODIST_DUMP_DIR or AIODIST_TRACE_DIR for the job that is to write there"
        )
    fitting = jobs_called(job, jobs)
    if not fitting:
        raise InvalidUsageError(f"no part here is of job {job!r}, but of {', '.join(sorted(jobs))}")
    return max(fitting, key=lambda name: max(path.stat().st_mtime for path in jobs[name]))
