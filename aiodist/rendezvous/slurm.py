"""Slurm's variables about a step: its hosts, ``node[01-04,7],gpu3``, its tasks on each, a port."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Mapping

from aiodist.errors import InvalidUsageError

_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below 32768, where Linux takes the ports of outgoing connections from."""

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodelist(text: str) -> list[str]:
    """Return host names in order. Raises InvalidUsageError if ``text`` is no node list."""
    hosts: list[str] = []
    for item in _split(text):
        # "rack[1-2]n[01-02]" -> ["rack", "1-2", "n", "01-02", ""]: texts at even places
        pieces = re.split(r"\[([^\[\]]*)\]", item)
        choices = [
            _expand_ranges(piece, text) if place % 2 else [piece]
            for place, piece in enumerate(pieces)
        ]
        hosts += ["".join(parts) for parts in itertools.product(*choices)]
    if not hosts or any(not host or set(host) & set("[] ") for host in hosts):
        raise _malformed(text)
    return hosts


def job_port(job: str, step: str) -> int:
    """Return a port from 10000 to 29999 that is the same on every rank of a job's step."""
    return _FIRST_PORT + zlib.crc32(f"{job}.{step}".encode()) % _PORTS


def tasks_on_this_node(environ: Mapping[str, str]) -> int | None:
    """Return how many tasks of the step run on this node, or None if Slurm does not say."""
    node = environ.get("SLURM_NODEID", "")
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    try:
        return expand_counts(counts)[int(node)]
    except (ValueError, IndexError):
        return None


def expand_counts(text: str) -> list[int]:
    """Expand ``2(x3),1`` to 2 2 2 1. Raises ValueError if ``text`` is no such list."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no list of tasks per node such as '2(x3),1'")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return [item for item in re.split(r",(?![^\[]*\])", text.strip()) if item]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    """Expand ``01-03,7`` to 01 02 03 7: the width of a range's first number applies to all of it."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed(text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _malformed(text)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _malformed(text: str) -> InvalidUsageError:
    return InvalidUsageError(
        f"{text!r} is not a Slurm node list such as 'node[01-04,7],gpu3': set MASTER_ADDR to the "
        "host of rank 0"
    )
