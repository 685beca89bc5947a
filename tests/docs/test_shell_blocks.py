"""The shell blocks of README, docs and CONTRIBUTING: they run, or what they name exists."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.shell import SHELL_BLOCKS, differences, run
from tests.docs.shell_commands import problems

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
PAGES = {
    page: here
    for page, blocks in SHELL_BLOCKS.items()
    if (here := [block for block in blocks if not block.reason])
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = PAGES[page]
    for block, printed in zip(blocks, run(blocks, tmp_path, PATH), strict=True):
        shown, found = differences(block, printed)
        assert found == shown, block.name


@pytest.mark.parametrize("page", SHELL_BLOCKS, ids=lambda page: page.name)
def test_what_commands_name_exists(page: Path) -> None:
    lines = [line for block in SHELL_BLOCKS[page] for line in block.commands if line.strip()]
    assert [problem for line in lines for problem in problems(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "aiodist rnu -n 2 train.py",
        "aiodist run -n 2 --no-such-option train.py",
        "AIODIST_TABEL=t.json aiodist run train.py",
        "make bnech",
        "pip install 'aiodist[nothing]'",
        "python -m benchmarks.nothing",
        "python -m benchmarks.messages --cuont 3",
        "torchrun --nproc-per-nod 2 examples/training/distributed.py",
        "srun -n 4 python examples/training/slrum.py",
        "sbatch examples/training/train.sbatch --epcohs 10",
        "aiodist run -n 2 examples/training/local_sgd.py --sync-evry 16",
        "curl -X POST localhost:8000/nothing",
        "aiodsit run -n 2 train.py",
    ],
)
def test_a_wrong_name_is_found(line: str) -> None:
    assert len(problems(line)) == 1


def test_every_block_is_of_a_kind_that_a_test_reads() -> None:
    found = {
        kind
        for page in SHELL_BLOCKS
        for kind in re.findall(r"^```([^`\s]*).*\n(?:.*\n)*?```$", page.read_text("utf-8"), re.M)
    }
    assert {kind for kind in found if not kind.startswith("{")} == {
        "console",
        "python",
        "sh",
        "text",
    }
