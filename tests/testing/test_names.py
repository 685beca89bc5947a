"""What `aiodist.testing` offers, and that a user's test suite pays for nothing else."""

from __future__ import annotations

import subprocess
import sys

import aiodist.testing
from aiodist.store import MemoryStore


def test_its_names() -> None:
    assert aiodist.testing.__all__ == [
        "TRANSPORT_CHECKS",
        "Faults",
        "FaultyConnection",
        "FaultyTransport",
        "check_store",
        "check_transport",
        "run_ranks",
    ]
    assert all(callable(check) for check in aiodist.testing.TRANSPORT_CHECKS)


async def test_names_are_the_functions_and_not_the_modules() -> None:
    store = MemoryStore()

    async def make() -> MemoryStore:
        return store

    await aiodist.testing.check_store(make)
    assert await aiodist.testing.run_ranks(2, _double) == [0, 2]


async def _double(rank: int) -> int:
    return 2 * rank


def test_the_testing_package_imports_neither_torch_nor_pytest() -> None:
    script = "import sys, aiodist.testing; sys.exit(bool({'torch', 'pytest'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
