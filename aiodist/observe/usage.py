"""What one rank tells `aiodist top`: its operation now, the last ones in short, memory and CPU time.

Nothing is counted while operations run. The answer is made from the flight recorder on request.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, process_time
from typing import Any, NamedTuple

from aiodist.errors import ProtocolError
from aiodist.observe.rank_report import ClockSample, Identity, Observed
from aiodist.observe.recorder import Message, Record, UnderWay, operation, recent_records
from aiodist.observe.volume import volume

MOST_SPANS = 512
"""Operations in one answer, the last ones; beyond that they are a sample."""


class Span(NamedTuple):
    """One operation in short. Times are nanoseconds of the rank's clock; ``finished`` is 0 for an
    operation in progress.

    ``sequence`` is -1 for a message; ``peer`` is the rank that a receive waits for, else -1.
    """

    group: int
    sequence: int
    peer: int
    sent: int
    received: int
    created: int
    finished: int


@dataclass(frozen=True)
class Current:
    """The operation that a rank is in. ``seconds``: since its call."""

    call: str
    seconds: float
    waiting_for: tuple[int, ...]


@dataclass(frozen=True)
class Usage:
    """One rank's answer. ``clock`` is its `monotonic_ns`; ``begun`` counts all its operations.

    ``cpu_seconds``: CPU time of the process so far. ``memory``, ``peak_memory``: resident bytes, 0
    if the system does not tell. ``place``: the line of the program that the main thread is at.
    ``started``: the id of each of its groups, and how many collectives it has started there.
    """

    identity: Identity
    clock: int
    begun: int
    cpu_seconds: float
    memory: int
    peak_memory: int
    place: str
    current: Current | None
    started: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...]
    samples: tuple[ClockSample, ...]

    def encode(self) -> bytes:
        """Return it as JSON. `dataclasses.asdict` would copy each of hundreds of spans."""
        facts = vars(self) | {
            "identity": vars(self.identity),
            "current": None if self.current is None else vars(self.current),
            "samples": [vars(sample) for sample in self.samples],
        }
        return json.dumps(facts).encode()


def usage_of(
    observed: Observed,
    identity: Identity,
    seconds: float,
    place: str,
    samples: Sequence[ClockSample] = (),
) -> Usage:
    """Return the present usage of a rank, with its operations of the last ``seconds``. Any thread."""
    since = monotonic_ns() - int(seconds * 1e9)
    works = observed.under_way()
    begun = observed.recorder.count
    records = recent_records(observed.recorder, works, MOST_SPANS)
    chosen = [record for record, work in records if record.finished >= since or work is not None]
    memory, peak = memory_of_process()
    now = monotonic_ns()
    return Usage(
        identity=identity,
        clock=now,
        begun=begun,
        cpu_seconds=process_time(),
        memory=memory,
        peak_memory=peak,
        place=place,
        current=_current(works, now),
        started=tuple((group.label.id, group.n_started) for group in observed.groups),
        spans=tuple(_span(record, identity.rank) for record in chosen),
        samples=tuple(samples),
    )


def _span(record: Record, rank: int) -> Span:
    peer = -1
    if isinstance(record.what, tuple):
        message = Message(*record.what)
        if message.operation.startswith("recv"):
            peer = message.peer
    sent, received = volume(record, rank)
    return Span(
        record.group.id, record.sequence, peer, sent, received, record.created, record.finished
    )


def _current(works: Sequence[UnderWay], now: int) -> Current | None:
    """Return the last operation that the program waits for, else the last in progress."""
    if not works:
        return None
    work = max(works, key=lambda each: (each._is_awaited, each._recorded.number))
    facts = operation(work._recorded, work)
    return Current(facts.call, max(0, now - facts.created) / 1e9, facts.waiting_for)


def memory_of_process() -> tuple[int, int]:
    """Return the resident bytes of this process now, and at most so far."""
    scale = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return 0, peak
    now = pages * os.sysconf("SC_PAGE_SIZE")
    return now, max(now, peak)


def decode_usage(data: bytes) -> Usage:
    """Decode an answer. Raises ProtocolError for data that `Usage.encode` does not produce."""
    try:
        facts: dict[str, Any] = json.loads(data)
        current = facts["current"]
        return Usage(
            identity=Identity(**facts["identity"]),
            clock=int(facts["clock"]),
            begun=int(facts["begun"]),
            cpu_seconds=float(facts["cpu_seconds"]),
            memory=int(facts["memory"]),
            peak_memory=int(facts["peak_memory"]),
            place=str(facts["place"]),
            current=None
            if current is None
            else Current(
                str(current["call"]),
                float(current["seconds"]),
                tuple(int(rank) for rank in current["waiting_for"]),
            ),
            started=tuple((int(group), int(count)) for group, count in facts["started"]),
            spans=tuple(Span(*map(int, each)) for each in facts["spans"]),
            samples=tuple(ClockSample(**each) for each in facts["samples"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"this is no usage of a rank: {error!r}") from None
