"""The operations of all ranks as a trace for Perfetto (ui.perfetto.dev) and Chrome's about:tracing.

The format is the JSON object of "Trace Event Format" (Google): complete events ("X") with a start
and a duration in microseconds. A rank is a process there, and a group a thread. Overlapping
operations get separate lanes, since a thread's events have to nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiodist.observe.clock import Alignment, align
from aiodist.observe.rank_report import RankReport
from aiodist.observe.recorder import Operation


def chrome_trace(parts: Mapping[int, RankReport]) -> dict[str, Any]:
    """Return the trace as an object for `json.dump`. Times start at 0, on rank 0's clock."""
    aligned = align(parts)
    starts = [
        aligned[rank].common(each.created)
        for rank, part in parts.items()
        for each in part.operations
    ]
    origin = min(starts, default=0)
    events: list[dict[str, Any]] = []
    for rank, part in sorted(parts.items()):
        events += _events(part, aligned[rank], origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "job": next(iter(parts.values())).identity.job if parts else "",
            "clock": "CLOCK_MONOTONIC of rank 0",
            "clock_error_us": {
                str(rank): None if one.error is None else one.error / 1e3
                for rank, one in sorted(aligned.items())
            },
        },
    }


def _events(part: RankReport, aligned: Alignment, origin: int) -> Iterable[dict[str, Any]]:
    rank = part.rank
    yield _named("process_name", rank, 0, name=str(part.identity))
    yield _named("process_sort_index", rank, 0, sort_index=rank)
    lanes = Lanes()
    for each in part.operations:
        end = each.finished or part.clock
        track = each.group if each.sequence >= 0 else f"{each.group}: messages"
        lane, is_new = lanes.place(track, each.created, end)
        if is_new:
            yield _named("thread_name", rank, lane, name=track)
            yield _named("thread_sort_index", rank, lane, sort_index=lane)
        start = aligned.common(each.created)
        yield {
            "ph": "X",
            "pid": rank,
            "tid": lane,
            "ts": (start - origin) / 1e3,
            "dur": (aligned.common(end) - start) / 1e3,
            "name": each.operation,
            "cat": "collective" if each.sequence >= 0 else "message",
            "args": _facts(each),
        }


def _facts(operation: Operation) -> dict[str, Any]:
    facts: dict[str, Any] = {"call": operation.call, "state": operation.state}
    if operation.sequence >= 0:
        facts["sequence"] = operation.sequence
    if operation.nbytes >= 0:
        facts["bytes"] = operation.nbytes
    if operation.error:
        facts["error"] = operation.error
    if operation.waiting_for:
        facts["waiting_for"] = list(operation.waiting_for)
    return facts


def _named(kind: str, rank: int, lane: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": lane, "name": kind, "args": args}


class Lanes:
    """Assign the operations of one rank to lanes so that no two in a lane overlap."""

    def __init__(self) -> None:
        self._tracks: dict[str, list[int]] = {}  # the lanes of a track, by number
        self._busy: list[int] = []  # until when each lane is taken

    def place(self, track: str, start: int, end: int) -> tuple[int, bool]:
        """Return a lane of ``track`` that is free from ``start`` to ``end``, and whether it is new.

        Call it in the order of the starts.
        """
        lanes = self._tracks.setdefault(track, [])
        for lane in lanes:
            if self._busy[lane] <= start:
                self._busy[lane] = end
                return lane, False
        lane = len(self._busy)
        self._busy.append(end)
        lanes.append(lane)
        return lane, True
