"""Rows as a table of text, and numbers of ranks as runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format ``rows`` in columns as wide as their widest entry; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def ranks(numbers: Sequence[int], *, capital: bool = False) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 5``."""
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word.capitalize() if capital else word} {ranges(numbers)}"


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(parts)
