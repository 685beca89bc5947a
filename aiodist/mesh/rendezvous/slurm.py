"""Slurm's way of naming hosts, ``node[01-04,7],gpu3``, and a port all ranks of a job agree on."""

from __future__ import annotations

import itertools
import re
import zlib

from aiodist.errors import InvalidUsageError

_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below 32768, where Linux takes the ports of outgoing connections from."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_nodelist(text: str) -> list[str]:
    """Host names in order. Raises InvalidUsageError where ``text`` is no node list."""
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
    """A port from 10000 to 29999, the same on every rank of a job's step."""
    return _FIRST_PORT + zlib.crc32(f"{job}.{step}".encode()) % _PORTS


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    return [item for item in re.split(r",(?![^\[]*\])", text.strip()) if item]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    """``01-03,7`` -> 01 02 03 7: the width of a range's first number holds for all of it."""
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
