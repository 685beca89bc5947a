"""Runs recipes one after the other in the processes of one job, and prints how each ended.

    aiodist run -n 2 several.py '[["distributed.py", "--epochs", "1"], ...]'

To start a process takes longer than a small recipe, so the tests start each set of ranks once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[4] / "examples" / "training"


def run(number: int, recipe: str, *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, what went to stdout and what to stderr."""
    # Runs that follow each other need a meeting place each: a TCP store may close while the last rank still
    # asks it something, and the next run would find it.
    meet = f"file://{Path(f'meet-{number}').resolve()}"
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    ranks = ["--dist-url", meet, "--rank", rank, "--world-size", size] if size != "1" else []
    sys.argv = [recipe, *ranks, *(argument.replace("RANK", rank) for argument in arguments)]
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(str(RECIPES / recipe), run_name="__main__")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    sys.path.insert(0, str(RECIPES))
    results = [run(number, *each) for number, each in enumerate(json.loads(sys.argv[1]))]
    Path(f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))
