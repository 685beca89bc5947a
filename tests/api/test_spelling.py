"""A misspelt variable is named, and who else's it may be is left alone."""

from __future__ import annotations

import asyncio
import contextvars
import re
from pathlib import Path

import pytest

import aiodist as dist
from aiodist.api.spelling import VARIABLES, misspelt_in
from aiodist.groups.world import World, use_world

PACKAGE = Path(__file__).parents[2] / "aiodist"


def test_all_that_the_package_names_is_known() -> None:
    named = {
        name
        for file in (*PACKAGE.rglob("*.py"), PACKAGE.with_name("_aiodist_autoload.py"))
        for name in re.findall(r"AIODIST_[A-Z_]*[A-Z]", file.read_text())
    }
    assert named - {"AIODIST_TEST_TIMEOUT_SCALE"} <= {*VARIABLES}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AIODIST_TRANSPROT", "AIODIST_TRANSPORT"),
        ("AIODIST_SHM_BYTE", "AIODIST_SHM_BYTES"),
        ("AIODIST_LIVENES_TIMEOUT", "AIODIST_LIVENESS_TIMEOUT"),
        ("AIODIST_STREAM", "AIODIST_STREAMS"),
        ("AIODSIT_STREAMS", "AIODIST_STREAMS"),
        ("AODIST_SECRET", "AIODIST_SECRET"),
    ],
)
def test_the_name_that_was_meant_is_said(name: str, meant: str) -> None:
    assert misspelt_in({name: "1", "PATH": "/bin"}) == [
        f"{name} is set, and nothing reads it: is {meant} meant?"
    ]


def test_other_names_are_left_alone() -> None:
    ours = dict.fromkeys(VARIABLES, "1")
    others = {
        "AIODIST_TEST_TIMEOUT_SCALE": "2",
        "AIODIST_SOAK_REPORT": "x",
        "AIODIST_MINE": "",
        "DIST_SECRET": "",
    }
    assert misspelt_in({**ours, **others}) == []


async def test_one_of_the_ranks_says_it_as_they_meet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIODIST_SHM_BYTE", "1048576")
    store = dist.MemoryStore()

    async def meet(rank: int) -> None:
        use_world(World())
        await dist.init_process_group(store=store, rank=rank, world_size=2, timeout=30)
        await dist.destroy_process_group()

    context = contextvars.copy_context
    await asyncio.gather(*(asyncio.create_task(meet(n), context=context()) for n in range(2)))
    assert caplog.text.count("AIODIST_SHM_BYTE is set") == 1
