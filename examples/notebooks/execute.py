"""Execute notebooks again and keep their output: after a change of a notebook, or of aiodist.

    python examples/notebooks/execute.py                          # all of this folder, in place
    python examples/notebooks/execute.py break_it.ipynb           # one, in place
    python examples/notebooks/execute.py break_it.ipynb OTHER     # into another file

The files hold no times and no versions, so that they change only where an output does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def execute(source: Path, target: Path) -> None:
    """Execute all cells of ``source`` in a new kernel and write them to ``target``."""
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=60,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else lines are grouped as they happened to arrive
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, target)


def main(names: list[str]) -> None:
    """Execute what the command line ``names``; a cell that raises ends it."""
    if len(names) > 1:
        execute(FOLDER / names[0], Path(names[1]))
        return
    for source in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        execute(source, source)


if __name__ == "__main__":
    main(sys.argv[1:])
