"""Execute a notebook in a kernel of its own: ``python cells.py IN.ipynb OUT.ipynb``.

A process for it, because the kernel's client leaves sockets and threads to the end.
"""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient


def main(source: str, target: str) -> None:
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(notebook, timeout=100, kernel_name="python3", allow_errors=True)
    client.execute()
    nbformat.write(notebook, target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
