"""Ranks as children of one process, which imports everything once: for ``init_process_group``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np  # noqa: F401  # before the forks, as what it is imported by

import aiodist

Facts = dict[str, Any]
Say = Callable[..., None]


def fork_ranks(
    ranks: Sequence[int],
    live: Callable[[int, Say], None],
    hear: Callable[[dict[int, Facts]], None] = lambda told: None,
) -> None:
    """Print what is known of each rank, in JSON, when all have ended.

    ``live(rank, say)`` runs in a child; ``say(**facts)`` adds to what is known of it, as does how
    it ends: with which DistError, and how many ``descriptors`` more than it had. ``hear(told)`` is
    called in the parent whenever a rank has said something; its ``pid`` is known from the start.
    """
    reading, writing = os.pipe()
    told: dict[int, Facts] = {}
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _live(rank, live, writing)
            os._exit(0)
        told[rank] = {"rank": rank, "pid": pid}
    os.close(writing)
    with open(reading) as lines:
        for said in map(json.loads, lines):
            told[said["rank"]] |= said
            hear(told)
    for known in told.values():
        os.waitpid(known["pid"], 0)
    print(json.dumps([told[rank] for rank in ranks]))


def _live(rank: int, live: Callable[[int, Say], None], pipe: int) -> None:
    before = _descriptors()

    def say(**facts: Any) -> None:
        os.write(pipe, json.dumps({"rank": rank, **facts}).encode() + b"\n")

    end: Facts = {}
    try:
        live(rank, say)
    except aiodist.DistError as error:
        end = {"error": type(error).__name__, "text": str(error), "fields": error.fields}
    say(**end, descriptors=_descriptors() - before)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
