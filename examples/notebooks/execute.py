"""Execute first_steps.ipynb again and keep its output: after a change of the notebook, or of aiodist.

    python examples/notebooks/execute.py             # in its place
    python examples/notebooks/execute.py OTHER.ipynb # into another file

The file holds no times and no versions, so that it changes only where an output does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("first_steps.ipynb")


def main() -> None:
    """Execute all cells in a new kernel; one that raises ends it."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=60,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else lines are grouped as they happened to arrive
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, sys.argv[1] if len(sys.argv) > 1 else NOTEBOOK)


if __name__ == "__main__":
    main()
