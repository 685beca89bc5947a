"""The page's tables, made from what the tests measured: ``python -m tests.faults.report``.

``docs/reliability/matrix.json`` is written by ``make matrix`` and ``docs/reliability/soak.json`` by
``make soak``; this writes them into ``docs/reliability.md``, between its markers.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.faults.cells import FAULTS, IN_INIT, PHASES, Cell

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"
MATRIX = DOCS / "reliability" / "matrix.json"
SOAK = DOCS / "reliability" / "soak.json"

KEYS = ("fault", "phase", "transport")


def write_results(place: Path, measured: Mapping[Cell, float]) -> None:
    """One row for each fault, phase and transport: how many cells, and their seconds.

    Rows that ``place`` has already, of what was not measured this time, stay.
    """
    groups: dict[tuple[str, ...], list[float]] = {}
    for cell, seconds in measured.items():
        groups.setdefault((cell.fault, cell.phase, cell.transport), []).append(seconds)
    rows = [
        {
            **dict(zip(KEYS, key, strict=True)),
            "cells": len(each),
            "median": round(statistics.median(each), 4),
            "worst": round(max(each), 4),
        }
        for key, each in groups.items()
    ]
    if place.exists():
        kept = json.loads(place.read_text())["rows"]
        rows += [row for row in kept if tuple(row[key] for key in KEYS) not in groups]
    rows.sort(key=lambda row: [row[key] for key in KEYS])
    results = {
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}",
        "cells": sum(row["cells"] for row in rows),
        "rows": rows,
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(results, indent=1) + "\n")


def tables(matrix: Mapping[str, Any], soak: Mapping[str, Any]) -> str:
    """What stands between the markers."""
    transports = sorted({row["transport"] for row in matrix["rows"]})
    lines = [
        f"Measured over {', '.join(transports)}, with 2 to 4 ranks, on {matrix['machine']}: "
        f"{matrix['cells']} cells, all of which passed.",
        "",
        "| what happens to a rank | promise | worst | median of the phases | cells |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, fault in FAULTS.items():
        rows = [row for row in matrix["rows"] if row["fault"] == name and row["phase"] != IN_INIT]
        median = statistics.median(row["median"] for row in rows)
        cells = sum(row["cells"] for row in rows)
        worst = max(row["worst"] for row in rows)
        lines.append(
            f"| {name} | {fault.promise} | {_seconds(worst)} | {_seconds(median)} | {cells} |"
        )
    lines += ["", "The worst of each phase, in seconds:", ""]
    lines += ["| while | " + " | ".join(FAULTS) + " |", "| --- |" + " --- |" * len(FAULTS)]
    for phase in (*PHASES, IN_INIT):
        found = [_worst(matrix["rows"], name, phase) for name in FAULTS]
        lines.append(f"| {phase} | " + " | ".join(found) + " |")
    lines += [
        "",
        f"The soak: eight ranks, {soak['operations']:,} steps in {soak['seconds']:.0f} s. After a "
        f"quarter of it no rank held more than {_holdings(soak, 'early')};",
        f"at its end, no more than {_holdings(soak, 'late')}.",
    ]
    return "\n".join(lines)


def _worst(rows: Iterable[Mapping[str, Any]], fault: str, phase: str) -> str:
    found = [row["worst"] for row in rows if row["fault"] == fault and row["phase"] == phase]
    return f"{max(found):.2f}" if found else ""


def _holdings(soak: Mapping[str, Any], when: str) -> str:
    megabytes = soak[f"rss_bytes_{when}"] / 1e6
    descriptors, threads = soak[f"descriptors_{when}"], soak[f"threads_{when}"]
    return f"{megabytes:.0f} MB, {descriptors:.0f} descriptors and {threads:.0f} threads"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def page(text: str, matrix: Mapping[str, Any], soak: Mapping[str, Any]) -> str:
    """``text`` with the tables of these results."""
    begin, end = "<!-- measured -->\n", "\n<!-- end of measured -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    made, count = pattern.subn(lambda _: f"{begin}\n{tables(matrix, soak)}\n{end}", text)
    assert count == 1, "the page has lost its markers"
    return made


def main() -> None:
    results = [json.loads(place.read_text()) for place in (MATRIX, SOAK)]
    PAGE.write_text(page(PAGE.read_text(), *results))


if __name__ == "__main__":
    main()
