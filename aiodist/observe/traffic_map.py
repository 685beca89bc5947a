"""Which ranks exchange data with which, as a picture: a row for each sender, a column for each receiver."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiodist.observe.rank_report import RankReport
from aiodist.observe.svg import picture, rectangle, words
from aiodist.observe.volume import flows

_LEFT, _TOP = 70, 70
_LABELLED = 16
"""Ranks up to which the cells have their bytes as text."""


def traffic(parts: Mapping[int, RankReport]) -> dict[tuple[int, int], float]:
    """Return the bytes that went from one rank to another, by (from, to); see `volume.flows`."""
    found: dict[tuple[int, int], float] = {}
    members = _members(parts)
    for rank, part in parts.items():
        for operation in part.operations:
            for source, to, nbytes in flows(operation, rank, members[operation.group_id]):
                found[source, to] = found.get((source, to), 0.0) + nbytes
    return found


def _members(parts: Mapping[int, RankReport]) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each group; where the group is gone, those with a record of it."""
    taking_part: dict[int, set[int]] = {}
    for rank, part in parts.items():
        for operation in part.operations:
            taking_part.setdefault(operation.group_id, set()).add(rank)
    found = {group: tuple(sorted(ranks)) for group, ranks in taking_part.items()}
    return found | {group.id: group.ranks for part in parts.values() for group in part.groups}


def traffic_map(parts: Mapping[int, RankReport]) -> str:
    """Return the picture as SVG. The darker a cell, the more bytes, on a logarithmic scale."""
    found = traffic(parts)
    size = max((part.identity.size for part in parts.values()), default=1)
    cell = 56.0 if size <= _LABELLED else max(4.0, 720 / size)
    most = max(found.values(), default=1.0)
    least = min((nbytes for nbytes in found.values() if nbytes), default=1.0)
    drawn = [
        words(
            _LEFT, 20, "bytes from the rank of the row to the rank of the column", fill="#444444"
        ),
        words(_LEFT, 36, "messages, and by their meaning collectives", fill="#444444"),
    ]
    every = max(1, math.ceil(16 / cell))
    for rank in range(0, size, every):
        middle = (rank + 0.5) * cell
        drawn.append(words(_LEFT + middle, _TOP - 8, str(rank), text_anchor="middle"))
        drawn.append(words(_LEFT - 8, _TOP + middle + 4, str(rank), text_anchor="end"))
    for source in range(size):
        for to in range(size):
            x, y = _LEFT + to * cell, _TOP + source * cell
            nbytes = found.get((source, to), 0.0)
            shade = _shade(nbytes, least, most)
            title = f"rank {source} to rank {to}: {_bytes(nbytes)}"
            drawn.append(rectangle(x, y, cell, cell, _blue(shade), stroke="#ffffff", title=title))
            if size <= _LABELLED and nbytes:
                ink = "#ffffff" if shade > 0.5 else "#000000"
                text = _bytes(nbytes)
                drawn.append(
                    words(x + cell / 2, y + cell / 2 + 4, text, text_anchor="middle", fill=ink)
                )
    side = max(size * cell, 320.0)
    return picture(_LEFT + side + 20, _TOP + size * cell + 20, drawn)


def _shade(nbytes: float, least: float, most: float) -> float:
    """Return 0.0 for nothing, 0.15 for the least bytes, 1.0 for the most."""
    if not nbytes:
        return 0.0
    span = math.log(most / least)
    return 1.0 if not span else 0.15 + 0.85 * math.log(nbytes / least) / span


def _blue(shade: float) -> str:
    light, dark = (0xF2, 0xF2, 0xF2), (0x08, 0x45, 0x94)
    mixed = (round(a + (b - a) * shade) for a, b in zip(light, dark, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _bytes(nbytes: float) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= factor:
            count = nbytes / factor
            return f"{count:.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
    return f"{nbytes:.0f} B"
