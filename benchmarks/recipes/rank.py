"""One rank that runs recipes one after the other: to start a process takes longer than a small recipe.

``python -m benchmarks.recipes.rank FILE``: a JSON list of commands, each a recipe and its arguments.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from benchmarks.recipes.plan import ALONE, FOLDER, UNDER_SLURM


def run(number: int, folder: Path, script: str, *arguments: str) -> None:
    """Run ``script``. Print what it wrote, and end this process, if it fails."""
    # A meeting place of its own for each run: at a TCP store the next run could meet ranks of this one.
    file = folder / f"meet-{number}"
    if script == ALONE:
        meet = []
    elif script == UNDER_SLURM:
        meet = ["--dist-file", str(file)]
    else:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        meet = ["--dist-url", file.as_uri(), "--rank", rank, "--world-size", size]
    sys.argv = [script, *meet, *arguments]
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            runpy.run_path(str(FOLDER / script), run_name="__main__")
    except BaseException:  # noqa: BLE001  # SystemExit is how a recipe reports bad input
        print(written.getvalue(), traceback.format_exc(), file=sys.stderr, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER))
    orders = Path(sys.argv[1])
    for number, command in enumerate(json.loads(orders.read_text())):
        run(number, orders.parent, *command)
