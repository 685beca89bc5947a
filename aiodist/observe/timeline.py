"""The operations of all ranks as a picture: time from left to right, a band for each rank.

The pale start of a collective is the time until its last rank entered it. What is too narrow to be
seen is drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from aiodist.observe.clock import Alignment, align
from aiodist.observe.rank_report import RankReport
from aiodist.observe.recorder import CANCELLED, FAILED, Operation
from aiodist.observe.svg import line, picture, rectangle, words
from aiodist.observe.trace import Lanes

WIDTH = 1200
_LEFT, _RIGHT, _TOP = 110, 20, 56
_LANE, _GAP = 14, 8
_NARROW = 0.5
"""Columns below which neighbours are drawn together."""

_PALETTE = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b"),
    *("#e377c2", "#17becf", "#bcbd22", "#7f7f7f", "#393b79"),
)
_STATES = MappingProxyType({FAILED: "#d62728", CANCELLED: "#d62728"})


@dataclass
class _Bar:
    """What is drawn as one: neighbours in a lane with the same name. Times are nanoseconds."""

    lane: int
    name: str
    start: int
    entered: int
    end: int
    state: str
    told: str
    count: int = field(default=1)


def timeline(parts: Mapping[int, RankReport]) -> str:
    """Return the picture as SVG. Times start at 0, on rank 0's clock."""
    clocks = align(parts)
    spans = [
        (clocks[rank].common(each.created), clocks[rank].common(each.finished or part.clock))
        for rank, part in parts.items()
        for each in part.operations
    ]
    origin = min((start for start, _ in spans), default=0)
    length = max(1, max((end for _, end in spans), default=1) - origin)
    scale = (WIDTH - _LEFT - _RIGHT) / length
    names = sorted({each.operation for part in parts.values() for each in part.operations})
    colours = {name: _PALETTE[place % len(_PALETTE)] for place, name in enumerate(names)}
    entered = _last_entries(parts, clocks)
    drawn: list[str] = []
    y = float(_TOP)
    for rank, part in sorted(parts.items()):
        bars, lanes = _bars(part, clocks[rank], entered, _NARROW / scale)
        height = _LANE * max(1, lanes)
        drawn.append(rectangle(_LEFT, y, WIDTH - _LEFT - _RIGHT, height, "#f4f4f4"))
        drawn.append(words(_LEFT - 8, y + 11, f"rank {rank}", text_anchor="end"))
        for bar in bars:
            drawn += _drawn(bar, y, origin, scale, colours[bar.name])
        y += height + _GAP
    head = [*_legend(colours), *_axis(length, scale, y)]
    return picture(WIDTH, y + 8, [*head, *drawn])


def _last_entries(
    parts: Mapping[int, RankReport], clocks: Mapping[int, Alignment]
) -> dict[tuple[int, int], int]:
    """Return when the last rank entered each collective, by group and sequence number."""
    found: dict[tuple[int, int], int] = {}
    for rank, part in parts.items():
        for each in part.operations:
            if each.sequence >= 0:
                key = each.group_id, each.sequence
                found[key] = max(found.get(key, 0), clocks[rank].common(each.created))
    return found


def _bars(
    part: RankReport, clock: Alignment, entered: Mapping[tuple[int, int], int], narrow: float
) -> tuple[list[_Bar], int]:
    """Return the bars of a rank and the number of its lanes. ``narrow``: nanoseconds."""
    lanes, bars, latest, count = Lanes(), [], dict[int, _Bar](), 0
    for each in part.operations:
        track = each.group if each.sequence >= 0 else f"{each.group}: messages"
        lane, is_new = lanes.place(track, each.created, each.finished or part.clock)
        count += is_new
        start, end = clock.common(each.created), clock.common(each.finished or part.clock)
        met = min(entered.get((each.group_id, each.sequence), start), end)
        before = latest.get(lane)
        if (
            before is not None
            and (before.name, before.state) == (each.operation, each.state)
            and max(start - before.end, end - before.start) < narrow
        ):
            before.end, before.count = end, before.count + 1
            continue
        latest[lane] = bar = _Bar(
            lane, each.operation, start, met, end, each.state, _told(each, end - start)
        )
        bars.append(bar)
    return bars, count


def _told(operation: Operation, nanoseconds: int) -> str:
    error = f"\n{operation.error}" if operation.error else ""
    return f"{operation}\n{operation.state}, {duration(nanoseconds)}{error}"


def _drawn(bar: _Bar, y: float, origin: int, scale: float, colour: str) -> Iterator[str]:
    x = _LEFT + (bar.start - origin) * scale
    width = max(_NARROW, (bar.end - bar.start) * scale)
    title = bar.told if bar.count == 1 else f"{bar.count} x {bar.name}"
    edge = {"stroke": _STATES[bar.state], "stroke_width": "1.5"} if bar.state in _STATES else {}
    place = y + bar.lane * _LANE + 1
    yield rectangle(x, place, width, _LANE - 2, colour, title=title, opacity="0.35", **edge)
    met = _LEFT + (bar.entered - origin) * scale
    if x + width - met > 0:
        yield rectangle(met, place, x + width - met, _LANE - 2, colour, title=title)


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = float(_LEFT)
    for name, colour in colours.items():
        yield rectangle(x, 10, 10, 10, colour)
        yield words(x + 14, 19, name)
        x += 14 + 7 * len(name) + 16
    yield words(
        x, 19, "pale: until the last rank entered; red edge: failed or cancelled", fill="#666666"
    )


def _axis(length: int, scale: float, bottom: float) -> Iterator[str]:
    step = nice_step(length / 8)
    for number in range(int(length / step) + 1):
        x = _LEFT + number * step * scale
        yield line(x, _TOP - 8, x, bottom - _GAP, "#dddddd")
        yield words(x, _TOP - 12, duration(number * step), text_anchor="middle", fill="#444444")


def nice_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)


def duration(nanoseconds: float) -> str:
    """``0``, ``20 us``, ``1.5 ms``, ``2 s``."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= factor * 0.9999999:
            return f"{nanoseconds / factor:.4g} {unit}"
    return f"{nanoseconds:.0f} ns" if nanoseconds else "0"
