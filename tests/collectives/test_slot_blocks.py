"""A slot with blocks is published again while others read it."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from aiodist.collectives.slot_blocks import read_blocks, starts_of, write_blocks

ROOT = Path(__file__).parents[2]
LENGTHS = (1000,) * 8
AGAIN = f"""
import mmap, sys
from aiodist.collectives.slot_blocks import starts_of, write_blocks

with open(sys.argv[1], "r+b") as file:
    slot = memoryview(mmap.mmap(file.fileno(), 0))
for _ in range(100_000):
    write_blocks(slot, (), starts_of({LENGTHS}))
"""


def test_the_lengths_stand_there_at_every_moment(tmp_path: Path) -> None:
    """Another process writes the same again and again."""
    path = tmp_path / "slot"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        slot = memoryview(memory)
        write_blocks(slot, (), starts_of(LENGTHS))
        other = subprocess.Popen([sys.executable, "-c", AGAIN, str(path)], cwd=ROOT)
        found = set()
        while other.poll() is None:
            found.update(read_blocks(slot, 0, 8, len(slot))[0] for _ in range(1000))
        slot.release()
    assert other.returncode == 0
    assert found == {LENGTHS}
