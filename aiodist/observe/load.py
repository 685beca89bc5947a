"""What each rank of a running job does per second, from two answers of each rank.

A rank waits while it is in a collective that another member has not entered, and while it is in a
receive. The rank that enters last, or sends late, holds up the others for that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aiodist.observe.clock import Alignment
from aiodist.observe.usage import MOST_SPANS, Span, Usage

NOTICEABLE = 0.02
"""The share of the others' time from which on a rank counts as the slowest."""


@dataclass(frozen=True)
class RankLoad:
    """One rank between two answers. Rates are per second, shares are from 0.0 to 1.0.

    ``waiting``: the share of time in which an operation waited for another rank. ``moving``: the
    share in which an operation ran and none waited. ``holds_up``: the share of the other ranks'
    time that they waited for this one. ``cpu``: cores in use. ``is_sample``: there were more
    operations than an answer has, so bytes and shares are those of the last ones.
    """

    operations: float
    sent: float
    received: float
    waiting: float
    moving: float
    holds_up: float
    cpu: float
    is_sample: bool


class Interval(NamedTuple):
    """Nanoseconds on the common clock."""

    start: int
    end: int


class _Entry(NamedTuple):
    """A rank's operation on the common clock. ``end`` is the present for one in progress."""

    rank: int
    span: Span
    start: int
    end: int


def loads(before: Mapping[int, Usage], now: Mapping[int, Usage]) -> dict[int, RankLoad]:
    """Return the load of each rank that has answered twice, by the same process."""
    ranks = [
        rank
        for rank in now
        if rank in before
        and now[rank].identity == before[rank].identity  # else its counts began anew
        and now[rank].clock > before[rank].clock
    ]
    entries = {rank: _entries(before[rank], now[rank]) for rank in ranks}
    windows = {rank: _window(before[rank], now[rank], entries[rank]) for rank in ranks}
    waits = _waits(entries, now)
    size = next(iter(now.values())).identity.size if now else 1
    blamed = dict.fromkeys(now, 0)
    for rank in ranks:
        for interval, culprits in waits[rank]:
            for culprit in culprits:
                if culprit in blamed:
                    blamed[culprit] += _covered([interval], windows[rank])
    found = {}
    for rank in ranks:
        usage, earlier, window = now[rank], before[rank], windows[rank]
        seconds = (usage.clock - earlier.clock) / 1e9
        length = max(1, window.end - window.start)
        busy = _covered((Interval(entry.start, entry.end) for entry in entries[rank]), window)
        waiting = _covered((interval for interval, _ in waits[rank]), window)
        begun = usage.begun - earlier.begun
        ended = [entry.span for entry in entries[rank] if entry.span.finished]
        is_sample = _is_sample(usage)
        scale = begun / len(ended) if is_sample and ended else 1.0
        found[rank] = RankLoad(
            operations=begun / seconds,
            sent=scale * sum(span.sent for span in ended) / seconds,
            received=scale * sum(span.received for span in ended) / seconds,
            waiting=waiting / length,
            moving=max(0, busy - waiting) / length,
            holds_up=min(1.0, blamed[rank] / length / max(1, size - 1)),
            cpu=(usage.cpu_seconds - earlier.cpu_seconds) / seconds,
            is_sample=is_sample,
        )
    return found


def slowest(found: Mapping[int, RankLoad]) -> int | None:
    """Return the rank that holds up the others most; None if no rank does noticeably.

    While a rank waits, it holds up the others because of another rank, as in a pipeline.
    """
    candidates = [rank for rank in found if found[rank].holds_up >= NOTICEABLE]
    return max(candidates, key=lambda rank: _own_share(found[rank]), default=None)


def _own_share(load: RankLoad) -> tuple[float, float]:
    return load.holds_up * (1 - load.waiting), load.holds_up


def _is_sample(usage: Usage) -> bool:
    return len(usage.spans) >= MOST_SPANS


def _entries(before: Usage, now: Usage) -> list[_Entry]:
    """Return the operations that ran between the two answers, on the common clock."""
    clock = Alignment(now.samples, None)
    return [
        _Entry(
            now.identity.rank,
            span,
            clock.common(span.created),
            clock.common(span.finished or now.clock),
        )
        for span in now.spans
        if not span.finished or span.finished > before.clock
    ]


def _window(before: Usage, now: Usage, entries: list[_Entry]) -> Interval:
    """Return the time that the operations in the answer tell of."""
    clock = Alignment(now.samples, None)
    start = clock.common(before.clock)
    ends = [entry.end for entry in entries if entry.span.finished]
    if _is_sample(now) and ends:
        start = max(start, min(ends))
    return Interval(start, clock.common(now.clock))


def _waits(
    entries: Mapping[int, list[_Entry]], now: Mapping[int, Usage]
) -> dict[int, list[tuple[Interval, tuple[int, ...]]]]:
    """Return when each rank waited, and for which ranks."""
    waits: dict[int, list[tuple[Interval, tuple[int, ...]]]] = {rank: [] for rank in entries}
    together: dict[tuple[int, int], list[_Entry]] = {}
    for rank, own in entries.items():
        for entry in own:
            if entry.span.sequence >= 0:
                together.setdefault((entry.span.group, entry.span.sequence), []).append(entry)
            elif entry.span.peer >= 0:
                waits[rank].append((Interval(entry.start, entry.end), (entry.span.peer,)))
    told_at = {rank: Alignment(each.samples, None).common(each.clock) for rank, each in now.items()}
    for (group, sequence), met in together.items():
        absent = _absent(group, sequence, now)
        last = max(met, key=lambda entry: entry.start)
        for entry in met:
            # A rank that is absent by its answer may have entered after that.
            until = {rank: min(entry.end, told_at[rank]) for rank in absent}
            if not entry.span.finished and not absent:
                until = dict.fromkeys(_silent(now[entry.rank], now), entry.end)
            if not any(end > entry.start for end in until.values()):
                until = {last.rank: min(last.start, entry.end)}
            for rank, end in until.items():
                if end > entry.start:
                    waits[entry.rank].append((Interval(entry.start, end), (rank,)))
    return waits


def _absent(group: int, sequence: int, now: Mapping[int, Usage]) -> tuple[int, ...]:
    """Return the members of a group that answered and have not entered its operation."""
    return tuple(
        rank
        for rank, usage in now.items()
        for number, started in usage.started
        if number == group and started <= sequence
    )


def _silent(usage: Usage, now: Mapping[int, Usage]) -> tuple[int, ...]:
    """Return the ranks that this one waits for and that have not answered."""
    current = usage.current
    return () if current is None else tuple(r for r in current.waiting_for if r not in now)


def _covered(intervals: Iterable[Interval], window: Interval) -> int:
    """Return the length of the union of ``intervals`` within ``window``."""
    total, reached = 0, window.start
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, window.end)
        if end > start:
            total += end - start
            reached = end
    return total
