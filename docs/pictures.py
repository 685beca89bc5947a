"""Draw the pictures of the documentation: ``python docs/pictures.py`` writes them into docs/_static.

Each is an SVG of plain shapes on a white ground, so that it reads in light and dark themes and on a forge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

STATIC = Path(__file__).parent / "_static"

COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
"""One for the data of each rank."""

INK, FAINT = "#222222", "#bbbbbb"
CELL = 22
RANKS = 4

Cell = tuple[int, ...]
"""Whose data a part of a tensor holds: several ranks where it is a sum, none where it is empty."""

Column = Sequence[Cell]
"""One rank's tensor, from its first part to its last."""


def _collectives() -> dict[str, tuple[list[Column], list[Column]]]:
    """Return what the ranks hold before and after each collective."""
    ranks = range(RANKS)
    every = tuple(ranks)
    own = [[(rank,)] for rank in ranks]
    parts = [[(rank,)] * RANKS for rank in ranks]
    empty: list[Column] = [[()] for _ in ranks]
    return {
        "broadcast": ([[(0,)], *empty[1:]], [[(0,)] for _ in ranks]),
        "reduce": (own, [[every], *own[1:]]),
        "all_reduce": (own, [[every] for _ in ranks]),
        "gather": (own, [[(rank,) for rank in ranks], *[[()] * RANKS for _ in ranks[1:]]]),
        "all_gather": (own, [[(rank,) for rank in ranks] for _ in ranks]),
        "scatter": ([[(rank,) for rank in ranks], *[[()] * RANKS for _ in ranks[1:]]], own),
        "reduce_scatter": (parts, [[every] for _ in ranks]),
        "all_to_all": (parts, [[(rank,) for rank in ranks] for _ in ranks]),
    }


def _text(
    x: float, y: float, words: str, size: int = 12, anchor: str = "middle", **more: str
) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{attributes}>'
        f"{escape(words)}</text>"
    )


def _cell(x: float, y: float, ranks: Cell) -> str:
    if not ranks:
        return (
            f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" fill="none" stroke="{FAINT}" '
            'stroke-dasharray="3 2"/>'
        )
    width = CELL / len(ranks)
    stripes = [
        f'<rect x="{x + number * width:g}" y="{y:g}" width="{width:g}" height="{CELL}" '
        f'fill="{COLORS[rank]}"/>'
        for number, rank in enumerate(ranks)
    ]
    frame = f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" fill="none" stroke="{INK}"/>'
    return "".join([*stripes, frame])


def _columns(x: float, y: float, columns: Sequence[Column]) -> str:
    shapes = []
    for rank, column in enumerate(columns):
        left = x + rank * (CELL + 12)
        shapes += [_cell(left, y + row * CELL, cell) for row, cell in enumerate(column)]
    return "".join(shapes)


def _panel(x: float, y: float, name: str, before: list[Column], after: list[Column]) -> str:
    width = RANKS * CELL + (RANKS - 1) * 12
    arrow = x + width + 14
    middle = y + 50
    head = f"{arrow + 28:g},{middle - 5:g} {arrow + 38:g},{middle:g} {arrow + 28:g},{middle + 5:g}"
    numbers = "".join(
        _text(left + rank * (CELL + 12) + CELL / 2, y + 24, str(rank), 11)
        for left in (x, x + width + 66)
        for rank in range(RANKS)
    )
    return "".join(
        [
            _text(x, y + 4, name, 14, "start", font_weight="bold"),
            numbers,
            _columns(x, y + 30, before),
            f'<line x1="{arrow:g}" y1="{middle:g}" x2="{arrow + 30:g}" y2="{middle:g}" '
            f'stroke="{INK}" stroke-width="2"/><polygon points="{head}" fill="{INK}"/>',
            _columns(x + width + 66, y + 30, after),
        ]
    )


def _picture(width: int, height: int, title: str, shapes: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" role="img">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{width}" height="{height}" fill="white"/>{shapes}</svg>\n'
    )


def all_reduce() -> str:
    """Draw one all_reduce."""
    before, after = _collectives()["all_reduce"]
    words = "before: each rank has its own data; after: each rank has the sum of all"
    panel = _panel(20, 24, "all_reduce", before, after)
    return _picture(380, 110, words, panel + _text(190, 100, words, 11))


def collectives() -> str:
    """Draw what each collective moves where."""
    shapes = [
        _panel(20 + 390 * (number % 2), 30 + 150 * (number // 2), name, *columns)
        for number, (name, columns) in enumerate(_collectives().items())
    ]
    title = "what each of eight collectives moves between four ranks; striped cells are sums"
    return _picture(790, 620, title, "".join(shapes))


def icon() -> str:
    """Draw the icon of the pages: the result of a collective, a part of each rank."""
    places = ((2, 2), (26, 2), (2, 26), (26, 26))
    return _picture(
        50, 50, "aiodist", "".join(_cell(x, y, (rank,)) for rank, (x, y) in enumerate(places))
    )


def operation() -> str:
    """Draw the way of one operation through the layers."""
    boxes = [
        (20, "your program", "await dist.all_reduce(x)"),
        (90, "API", "world, group; the blocking API calls the same"),
        (160, "group", "checks, sequence number, record, Work"),
        (230, "backend", "the plan of equal calls: algorithm, views, steps"),
    ]
    shapes = [_box(150, top, 360, name, words) for top, name, words in boxes]
    shapes += [_arrow(330, top + 46, 330, top + 70) for top in (20, 90, 160)]
    shapes += [
        _box(20, 320, 300, "shared memory", "publish, wait for peers, reduce"),
        _box(340, 320, 300, "streams", "frames, matching, credit"),
        _arrow(250, 276, 180, 320),
        _arrow(410, 276, 480, 320),
        _text(150, 302, "ranks of one host", 11),
        _text(520, 302, "between hosts", 11),
        _box(150, 400, 360, "completion", "the last step resumes the task that awaits the Work"),
        _arrow(180, 366, 250, 400),
        _arrow(480, 366, 410, 400),
    ]
    return _picture(660, 466, "the way of one operation through the layers", "".join(shapes))


def _box(x: float, y: float, width: float, name: str, words: str) -> str:
    middle = x + width / 2
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="46" rx="6" fill="#eef3f8" '
        f'stroke="{COLORS[0]}"/>'
        + _text(middle, y + 19, name, 13, font_weight="bold")
        + _text(middle, y + 36, words, 12)
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        '<defs><marker id="head" orient="auto" markerWidth="8" markerHeight="8" refX="7" refY="4">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" '
        'stroke-width="1.5" marker-end="url(#head)"/>'
    )


PICTURES: dict[str, Callable[[], str]] = {
    "all_reduce.svg": all_reduce,
    "collectives.svg": collectives,
    "icon.svg": icon,
    "operation.svg": operation,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (STATIC / name).write_text(draw(), encoding="utf-8")
