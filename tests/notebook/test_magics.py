"""``%%ranks`` and the blocking API in a real kernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.limits import scaled

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGE = (REPOSITORY / "docs" / "notebooks.md").read_text(encoding="utf-8")
LOAD, CELL, PRINTED = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
CLOSE = "%ranks --close"

EVERY_RANK = (
    CELL,
    "%%ranks\n"
    "import os, numpy as np\n"
    "import aiodist.sync as blocking\n"
    "data = np.ones(2) * blocking.get_rank()\n"
    "blocking.all_reduce(data)\n"
    "print('pid', os.getpid() > 0)\n"
    "data.tolist()",
    "%%ranks -r 0,2\nimport aiodist as dist\ndata[0] + dist.get_rank()",
    "%%ranks\nmore = np.ones(1)\nimport aiodist\nawait aiodist.all_reduce(more)\nmore.tolist()",
    "%%ranks -n 3 -r 1\n1 / 0",
    "%ranks -n 2",
    "%%ranks -r 0,0\ndata[0]",
    "%%ranks\ndata[0]",
    CLOSE,
    "%%ranks -n 2\n'data' in globals()",
    "%%ranks -r 1\nimport os\nos._exit(4)",
    "%ranks",
    CLOSE,
)
WRONG_SYNTAX = (
    "%%ranks -n 2\nx = (1",
    "%%ranks -n 2\n1\n%matplotlib inline",
    "%%ranks -n 3\n'é'; # no value",
    "%%ranks\n'é' # ;",
    "%ranks --help",
    CLOSE,
)
PLOTS = (
    "%%ranks -r 1\nimport os, matplotlib.pyplot as plt\nos.environ['DISPLAY'] = ':9'\n"
    "plt.plot([1]); plt.show()\nplt.plot([1, 2]);",
    "%%ranks -r one\n1",
    "%%ranks -r 1\nimport numpy as np\nnp.eye(2)",
    "%ranks",
    CLOSE,
)
AWAITED = (
    "import aiodist\nranks = await aiodist.cluster(2).__aenter__()",
    "base = 10\ndef number():\n    import aiodist.sync as dist\n    print('here')\n"
    "    return base + dist.get_rank()\nprint(await ranks.run(number))",
    "await ranks.close()\nprint('closed')",
)
BLOCKING = (
    "import asyncio, torch\n"
    "import aiodist.sync as dist\n"
    "dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)\n"
    "data = torch.ones(3)\n"
    "dist.all_reduce(data)\n"
    "work = dist.barrier(async_op=True)\n"
    "work.wait()\n"
    "dist.destroy_process_group()\n"
    "print(data.tolist(), asyncio.get_running_loop().is_running())",
)

OutputsOf = Callable[[tuple[str, ...]], list[Any]]


def run_beside(name: str, *words: str) -> str:
    """Run a program of this folder, which may import aiodist. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *words],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def outputs_of(tmp_path_factory: pytest.TempPathFactory) -> OutputsOf:
    """``outputs_of(PLOTS)``: what these cells wrote, one list a cell. One kernel executes them all."""
    parts = (EVERY_RANK, WRONG_SYNTAX, PLOTS, AWAITED, BLOCKING)
    folder = tmp_path_factory.mktemp("notebook")
    source, target = folder / "in.ipynb", folder / "out.ipynb"
    cells = [nbformat.v4.new_code_cell(text) for text in chain((LOAD,), *parts)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    run_beside("cells.py", str(source), str(target))
    outputs = iter([cell.outputs for cell in nbformat.read(target, as_version=4).cells][1:])
    found = {part: [next(outputs) for _ in part] for part in parts}
    return found.__getitem__


def text_of(outputs: Any) -> list[str]:
    """Return the lines that the cell wrote to stdout, sorted: ranks write in any order."""
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    return sorted(text.splitlines())


def test_a_cell_runs_on_every_rank_and_names_live_on(outputs_of: OutputsOf) -> None:
    outputs = outputs_of(EVERY_RANK)
    assert text_of(outputs[0]) == PRINTED.splitlines()
    assert text_of(outputs[1]) == [
        "[0] [3.0, 3.0]", "[0] pid True",
        "[1] [3.0, 3.0]", "[1] pid True",
        "[2] [3.0, 3.0]", "[2] pid True",
    ]  # fmt: skip
    assert text_of(outputs[2]) == ["[0] np.float64(3.0)", "[2] np.float64(5.0)"]
    assert text_of(outputs[3]) == ["[0] [3.0]", "[1] [3.0]", "[2] [3.0]"]
    shown = str(outputs[4])  # IPython writes groups of exceptions to stderr
    assert "RanksError: rank 1 of 3 failed" in shown
    assert 'File "<cell 5>", line 1' in shown
    assert "ZeroDivisionError: division by zero" in shown
    assert "cluster.py" not in shown  # how the ranks were called says nothing about the cell
    assert "3 ranks run, and -n asks for 2: leave -n out, or end the ranks" in str(outputs[5])
    assert "ranks must be distinct, got [0, 0]" in str(outputs[6])
    assert text_of(outputs[7]) == [f"[{rank}] np.float64(3.0)" for rank in range(3)]
    assert text_of(outputs[8]) == []
    assert text_of(outputs[9]) == ["[0] False", "[1] False"]
    shown = str(outputs[10])
    assert "ended with exit code 4" in shown
    assert "%ranks --close ends the other ranks, and the next cell starts all anew" in shown
    assert text_of(outputs[11]) == [
        "1 of 2 ranks run: %ranks --close ends them, and the next cell starts all anew"
    ]


def test_a_cell_with_wrong_syntax_is_refused_once_and_starts_no_ranks(
    outputs_of: OutputsOf,
) -> None:
    outputs = outputs_of(WRONG_SYNTAX)
    for shown, error in ((outputs[0], "was never closed"), (outputs[1], "invalid syntax")):
        assert [output.ename for output in shown] == ["SyntaxError"]
        assert error in str(shown)
    assert "the ranks run plain Python" in str(outputs[1])
    assert "end the ranks" in str(outputs[4])  # the help, which needs no ranks
    assert text_of(outputs[2]) == []
    assert text_of(outputs[3]) == ["[0] 'é'", "[1] 'é'", "[2] 'é'"]


def test_plots_come_back_as_pictures(outputs_of: OutputsOf) -> None:
    outputs = outputs_of(PLOTS)
    assert [output for output in outputs[0] if "image/png" in output.get("data", {})]
    assert not [output for output in outputs[0] if output.get("name") == "stderr"], outputs[0]
    assert text_of(outputs[0]) == [
        "[1]"
    ]  # for the picture: a semicolon hides the value, as in IPython
    assert "-r takes ranks with commas" in str(outputs[1])
    assert "".join(output.text for output in outputs[2]) == (
        "[1] array([[1., 0.],\n"
        "           [0., 1.]])\n"
    )  # fmt: skip


def test_the_line_magic_alone_says_how_many_ranks_run(outputs_of: OutputsOf) -> None:
    assert text_of(outputs_of(PLOTS)[3]) == ["2 ranks run"]


def test_the_cluster_is_awaited_in_a_cell(outputs_of: OutputsOf) -> None:
    outputs = outputs_of(AWAITED)
    assert text_of(outputs[1]) == ["[0] here", "[10, 11]", "[1] here"]
    assert text_of(outputs[2]) == ["closed"]


def test_a_cell_may_block_by_the_blocking_api(outputs_of: OutputsOf) -> None:
    (outputs,) = outputs_of(BLOCKING)
    assert text_of(outputs) == ["[1.0, 1.0, 1.0] True"], outputs


def test_an_interrupt_spares_the_ranks_and_a_restart_of_the_kernel_ends_them() -> None:
    facts = json.loads(run_beside("interrupting.py"))
    assert facts["before"] == facts["after"]
    assert len(facts["before"]) == len(facts["others"]) == 2
    *blocking_and_async, cluster = facts["ends"]
    assert all(end.endswith("KeyboardInterrupt") for end in blocking_and_async), facts
    assert cluster.endswith(("KeyboardInterrupt", "CancelledError")), facts
    assert facts["alive"] == "[1, 1]\n"
    assert facts["left"] == []
