"""The page about reliability says what was measured, and its example works."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import date

from tests.faults.cells import FAULTS, PHASES, Cell, all_cells, transports
from tests.faults.report import MATRIX, PAGE, Measured, measured, page, tables, write_results


def test_the_page_says_what_was_measured() -> None:
    text = PAGE.read_text()
    assert page(text, *measured()) == text, "write it anew: python -m tests.faults.report"


def test_the_whole_matrix_was_measured() -> None:
    """All transports on the page were measured; a new one is measured at the next run."""
    rows = json.loads(MATRIX.read_text())["rows"]
    measured = {(row["fault"], row["phase"], row["transport"]) for row in rows}
    over = {transport for _, _, transport in measured}
    assert {"tcp", "unix"} <= over
    cells = [cell for cell in all_cells() if cell.transport in over]
    assert {(cell.fault, cell.phase, cell.transport) for cell in cells} == measured
    assert sum(row["cells"] for row in rows) == len(cells)


def test_the_example_of_the_page_works() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    names: dict = {}
    exec(example[1], names)
    asyncio.run(names["test_everybody_learns_who_is_gone"]())


def test_results_are_gathered_by_fault_phase_and_transport(tmp_path) -> None:
    place, today = tmp_path / "matrix.json", date.today()
    scheme = transports()[0]
    measured = {
        Cell(fault, phase, scheme, size): Measured(float(size), size < 4, 5.0 + size, 0.1 * size)
        for fault in FAULTS
        for phase in PHASES
        for size in (2, 3, 4)
    }
    write_results(place, measured, 2.0)
    matrix = json.loads(place.read_text())
    assert matrix["cells"] == len(measured)
    assert today <= date.fromisoformat(matrix["date"]) <= date.today()
    assert matrix["rows"][0]["worst"] == 4.0
    assert matrix["rows"][0]["median"] == 3.0
    assert matrix["rows"][0]["kept"] == 2
    assert matrix["rows"][0]["loads"] == [7.0, 9.0]
    soak = {"shares": True, "operations": 10, "seconds": 5.0}
    for what in ("rss_bytes", "descriptors", "segments", "threads"):
        soak[f"{what}_early"] = soak[f"{what}_late"] = 1
    held = dict.fromkeys(("rss_bytes", "descriptors", "segments", "threads"), 1)
    service = dict.fromkeys(("ranks", "seconds", "kills", "leaders", "answered"), 1) | {
        **dict.fromkeys(("unavailable", "broken", "longest", "resumed", "whole"), 1),
        "held": {name: {"early": held, "late": held} for name in ("worker", "leader", "launcher")},
    }
    said = tables(matrix, soak, service)
    assert "| SIGKILL | " in said
    assert "4.00 s" in said
    assert "a load of 7 to 9" in said
    assert "2 times as much, and up to 0.4 s more where the machine let ranks wait" in said
