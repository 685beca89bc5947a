"""Starts recipes without a launcher, all in this process, and prints as JSON how each ended.

    by_hand.py distributed.py elastic.py

For each script: exit code and text of ``--help``, then those of a start without arguments.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[4] / "examples" / "training"


def run(script: Path, *arguments: str) -> tuple[object, str]:
    """Return the exit code of ``script`` and what it wrote."""
    sys.argv = [script.name, *arguments]
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as error:
            return error.code, written.getvalue()
    return 0, written.getvalue()


if __name__ == "__main__":
    sys.path.insert(0, str(RECIPES))
    scripts = [RECIPES / name for name in sys.argv[1:]]
    print(json.dumps([[*run(script, "--help"), *run(script)] for script in scripts]))
