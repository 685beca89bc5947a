"""The page's tables, made from what the tests measured: ``python -m tests.faults.report``.

``docs/reliability/matrix.json`` is written by ``make matrix``, ``soak.json`` beside it by ``make soak``
and ``service-soak.json`` by ``make soak-service``; this writes them into ``docs/reliability.md``,
between its markers.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.cells import AT_A_FLAG, FAULTS, IN_INIT, MEETING, PHASES, Cell

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reliability.md"
MATRIX = DOCS / "reliability" / "matrix.json"
SOAK = DOCS / "reliability" / "soak.json"
SERVICE_SOAK = DOCS / "reliability" / "service-soak.json"

KEYS = ("fault", "phase", "transport")


def measured() -> list[Mapping[str, Any]]:
    """Return what `tables` takes: the soak of the service is there once it was run."""
    places = [MATRIX, SOAK, *([SERVICE_SOAK] if SERVICE_SOAK.exists() else [])]
    return [json.loads(place.read_text()) for place in places]


class Measured(NamedTuple):
    """What came of a cell that passed."""

    seconds: float
    """From the fault to the end of the last survivor's operation."""
    kept: bool
    """That was within the promise, which on a busy machine is less than the test insists on."""
    load: float
    """The load of the machine over the minute before: processes that run or are runnable."""
    late: float
    """Seconds that ranks could have run and did not, for other programs: the test allowed for them."""


def write_results(place: Path, measured: Mapping[Cell, Measured], scale: float) -> None:
    """Write one row for each fault, phase and transport: the number of cells, and their seconds.

    ``scale``: the bounds that the tests allowed, in promises. Rows that ``place`` has already stay
    if they were not measured this time.
    """
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for cell, each in measured.items():
        groups.setdefault((cell.fault, cell.phase, cell.transport), []).append(each)
    rows = [
        {
            **dict(zip(KEYS, key, strict=True)),
            "cells": len(group),
            "kept": sum(each.kept for each in group),
            "median": round(statistics.median(each.seconds for each in group), 4),
            "worst": round(max(each.seconds for each in group), 4),
            "scale": scale,
            "late": round(max(each.late for each in group), 2),
            "loads": [round(way(each.load for each in group), 1) for way in (min, max)],
        }
        for key, group in groups.items()
    ]
    if place.exists():
        kept = json.loads(place.read_text())["rows"]
        rows += [row for row in kept if tuple(row[key] for key in KEYS) not in groups]
    rows.sort(key=lambda row: [row[key] for key in KEYS])
    results = {
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}",
        "cells": sum(row["cells"] for row in rows),
        "rows": rows,
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(results, indent=1) + "\n")


def tables(
    matrix: Mapping[str, Any], soak: Mapping[str, Any], service: Mapping[str, Any] | None = None
) -> str:
    """Return the text between the markers of the page."""
    rows = matrix["rows"]
    transports = sorted({row["transport"] for row in rows})
    kept = sum(row["kept"] for row in rows)
    scale = max(row["scale"] for row in rows)
    loads = min(row["loads"][0] for row in rows), max(row["loads"][1] for row in rows)
    lines = [
        f"Measured on {matrix['date']} over {', '.join(transports)}, with 2 to 4 ranks, on",
        f"{matrix['machine']}, under",
        f"a load of {loads[0]:.0f} to {loads[1]:.0f}: {matrix['cells']} cells, all of which passed. "
        f"{kept} cells kept the promise.",
        f"The tests allowed at most {scale:g} times as much{_allowed(rows)}.",
        "",
        "| what happens to a rank | promise | worst | median of the phases | cells | kept |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, fault in FAULTS.items():
        mine = [row for row in rows if row["fault"] == name and row["phase"] != IN_INIT]
        median = statistics.median(row["median"] for row in mine)
        worst = max(row["worst"] for row in mine)
        cells, kept = (sum(row[what] for row in mine) for what in ("cells", "kept"))
        times = f"{_seconds(worst)} | {_seconds(median)}"
        lines.append(f"| {name} | {fault.promise} | {times} | {cells} | {kept} |")
    head = ["| while | " + " | ".join(FAULTS) + " |", "| --- |" + " --- |" * len(FAULTS)]
    lines += ["", "The worst of each phase, in seconds:", "", *head]
    for phase in (*PHASES, AT_A_FLAG, MEETING, IN_INIT):
        found = [_worst(rows, "phase", phase, name) for name in FAULTS]
        lines.append(f"| {phase} | " + " | ".join(found) + " |")
    head[0] = head[0].replace("while", "over")
    lines += ["", "The worst over each transport, in seconds:", "", *head]
    for transport in transports:
        found = [_worst(rows, "transport", transport, name) for name in FAULTS]
        lines.append(f"| {transport} | " + " | ".join(found) + " |")
    lines += [
        "",
        f"The soak: eight ranks that {'share' if soak['shares'] else 'do not share'} memory, "
        f"{soak['operations']:,} steps in {soak['seconds']:.0f} s.",
        f"After a quarter of it no rank held more than {_holdings(_of(soak, 'early'))}.",
        f"At its end no rank held more than {_holdings(_of(soak, 'late'))}.",
        *([] if service is None else ["", *_service(service)]),
    ]
    return "\n".join(lines)


def _allowed(rows: Iterable[Mapping[str, Any]]) -> str:
    late = max(row["late"] for row in rows)
    return f", and up to {late:.1f} s more where the machine let ranks wait" if late else ""


def _worst(rows: Iterable[Mapping[str, Any]], key: str, value: str, fault: str) -> str:
    found = [
        row["worst"]
        for row in rows
        if row["fault"] == fault
        and row[key] == value
        and (key == "phase" or row["phase"] != IN_INIT)
    ]
    return f"{max(found):.2f}" if found else ""


def _of(soak: Mapping[str, Any], when: str) -> dict[str, float]:
    return {name.removesuffix(f"_{when}"): value for name, value in soak.items()}


def _holdings(held: Mapping[str, float]) -> str:
    megabytes = held["rss_bytes"] / 1e6
    names = ("descriptors", "segments", "threads")
    descriptors, segments, threads = (int(held[name]) for name in names)
    return (
        f"{megabytes:.0f} MB of its own, {descriptors} descriptors, {segments} mapped segments and "
        f"{threads} threads"
    )


def _service(soak: Mapping[str, Any]) -> list[str]:
    """Say what came of the soak of the service."""
    workers = soak["kills"] - soak["leaders"]
    lines = [
        f"The soak of a service: [inference.py](../examples/apps/inference.py) on {soak['ranks']} ranks, "
        f"eight clients, {soak['seconds']} s.",
        f"A rank was killed every 20 s: {workers} times a worker, {soak['leaders']} times the leader.",
        f"{soak['answered']:,} requests got their answer, {soak['unavailable']:,} got 503, and "
        f"{soak['broken']:,} lost their connection to a killed leader.",
        f"No request was without an end. The longest took {_seconds(soak['longest'])}.",
        f"After a kill, answers came again within {_seconds(soak['resumed'])}, and all ranks were there "
        f"again within {_seconds(soak['whole'])}.",
        "",
        "| process | after a quarter of its time | at the end |",
        "| --- | --- | --- |",
    ]
    for name, process in (
        ("worker", "a worker that was never killed"),
        ("leader", "the leader, in the first half, while workers were killed"),
        ("launcher", "the launcher"),
    ):
        held = soak["held"][name]
        lines.append(f"| {process} | {_holdings(held['early'])} | {_holdings(held['late'])} |")
    return lines


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def page(text: str, *results: Mapping[str, Any]) -> str:
    """Return ``text`` with the tables of these results."""
    begin, end = "<!-- measured -->\n", "\n<!-- end of measured -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    made, count = pattern.subn(lambda _: f"{begin}\n{tables(*results)}\n{end}", text)
    assert count == 1, "the page has lost its markers"
    return made


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(), *measured()))


if __name__ == "__main__":
    main()
