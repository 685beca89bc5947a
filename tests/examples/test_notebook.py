"""The notebooks run and print what they printed when committed; the first shows every operation.

``make test`` runs the shortest one, ``make test-examples`` the others.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

import aiodist
from aiodist.api import blocks, collectives, groups, objects, p2p

REPOSITORY = Path(__file__).parents[2]
NOTEBOOK = REPOSITORY / "examples" / "notebooks" / "first_steps.ipynb"

EXECUTE = NOTEBOOK.with_name("execute.py")

MOST_BYTES = 300_000

NOTEBOOKS = sorted(NOTEBOOK.parent.glob("*.ipynb"))
SHORTEST = NOTEBOOK.with_name("service.ipynb")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    """Return what the cell wrote, and only the kind of a picture: its bytes vary with matplotlib."""
    return "".join(
        output.text
        if "text" in output
        else " ".join([*sorted(output.data), output.data.get("text/plain", "")])
        for output in cell.outputs
    )


def operations(module: ModuleType) -> set[str]:
    return {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path == SHORTEST else [pytest.mark.examples])
        for path in NOTEBOOKS
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_notebook_prints_its_committed_output(
    path: Path, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    if path.stem == "train_digits":
        pytest.importorskip("sklearn")
    again = tmp_path / "again.ipynb"
    # In a process of its own: the kernel's client leaves sockets and threads to the end.
    done = subprocess.run(
        [sys.executable, str(EXECUTE), path.name, str(again)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for committed, executed in zip(code_cells(path), code_cells(again), strict=True):
        assert printed(executed) == printed(committed), (
            f"another output than the committed one of:\n\n{committed.source}\n\n"
            f"If it is right, run: .venv/bin/python examples/notebooks/execute.py {path.name}"
        )


@every_notebook
def test_a_notebook_is_committed_with_its_output(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for cell in cells)
    assert path.stat().st_size < MOST_BYTES
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


def test_the_notebook_shows_every_operation() -> None:
    source = "\n".join(cell.source for cell in code_cells(NOTEBOOK))
    shown = set(re.findall(r"\bdist\.(\w+)", source))
    everything = (
        operations(collectives) | operations(blocks) | operations(p2p) | operations(objects)
    )
    everything |= {name for name in operations(groups) if not name.startswith("get_")}
    assert (everything & set(aiodist.__all__)) - shown == set()


@every_notebook
def test_a_notebook_has_no_times_and_versions(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    # Times and the versions of who executed it last would change with every execution.
    assert notebook.metadata.language_info == {"name": "python"}
    assert not any("execution" in cell.metadata for cell in notebook.cells)
