"""The package names the encoding of each text that it reads or writes, whatever the locale is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
import asyncio
import numpy as np
import aiodist
import aiodist.sync as dist

async def main():
    async with aiodist.process_group() as group:
        await group.all_reduce(np.ones(2))

asyncio.run(main())
dist.init_process_group(torch_group=False)
dist.all_reduce(np.ones(2))
dist.destroy_process_group()
"""


def without_encoding(source: str) -> list[int]:
    """Return the lines of calls that read or write text and name no encoding."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        named = {keyword.arg for keyword in node.keywords}
        mode = node.args[1] if len(node.args) > 1 else ast.Constant("r")
        opens_text = (
            isinstance(node.func, ast.Name)
            and name == "open"
            and not (isinstance(mode, ast.Constant) and "b" in str(mode.value))
        )
        runs_text = name in ("run", "Popen", "check_output") and "text" in named
        is_text = opens_text or runs_text or name in ("read_text", "write_text")
        if is_text and "encoding" not in named:
            found.append(node.lineno)
    return found


def test_every_text_has_an_encoding() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*ROOT.glob("aiodist/**/*.py"), *ROOT.glob("_aiodist*.py")]
        for line in without_encoding(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    "call",
    ["open(path)", "open(path, 'w')", "Path(path).read_text()", "subprocess.run(c, text=True)"],
)
def test_a_text_without_an_encoding_is_found(call: str) -> None:
    assert without_encoding(call) == [1]


@pytest.mark.parametrize(
    "call", ["open(path, 'rb')", "os.open(path, 0)", "Path(path).read_text(encoding='utf-8')"]
)
def test_bytes_and_a_named_encoding_are_fine(call: str) -> None:
    assert without_encoding(call) == []


@pytest.mark.slow
def test_two_ranks_warn_of_no_encoding(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONWARNINGS": "error::EncodingWarning",
    }
    command = [sys.executable, "-m", "aiodist", "run", "-n", "2", str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
