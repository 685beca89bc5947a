"""``aiodist tune``, and jobs that load what it writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives.select import Choice, select
from aiodist.collectives.tables import decode, encode, rows_of
from aiodist.errors import InvalidUsageError
from aiodist.groups.world import current_world
from aiodist.launch.cli import USAGE_ERROR, main
from aiodist.testing import run_ranks
from aiodist.tuning.candidates import candidates


def test_candidates_differ_and_fit() -> None:
    found = candidates("all_reduce", 4, 1 << 20)
    assert {choice.algorithm for choice in found} == {"doubling", "halving_doubling", "ring"}
    chunks = [choice.chunk for choice in found if choice.algorithm == "ring"]
    assert chunks == [64 << 10, 128 << 10, 256 << 10]  # the last one holds a whole block
    assert "doubling" not in {choice.algorithm for choice in candidates("all_gather", 3, 1024)}


async def test_measures_writes_and_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    argv = ["tune", "all_reduce", "broadcast", "-n", "2", "-s", "64,8K", "--seconds", "0"]
    assert await asyncio.to_thread(main, [*argv, "-o", str(path)]) == 0
    assert "all_reduce 8192 bytes, 2 ranks: " in capfd.readouterr().err
    rules = decode(path.read_text())
    assert rules["all_reduce"][0].least == rules["all_reduce"][0].ranks == 2
    assert json.loads(path.read_text())["machine"]["cores"]

    async def rank(number: int) -> None:
        assert current_world().rules == rules
        array = np.full(5, number + 1.0)
        await dist.all_reduce(array)
        assert array.tolist() == [3.0] * 5

    monkeypatch.setenv("AIODIST_TABLE", str(path))
    await run_ranks(2, rank)


async def test_all_ranks_go_by_rank_0s_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    path.write_text(encode({"all_reduce": rows_of(3, [(4, Choice("ring", 8))])}, {}))
    monkeypatch.setenv("AIODIST_TABLE", str(path))

    async def rank(number: int) -> None:
        rules = current_world().rules
        assert select("all_reduce", 3, 1 << 10, rules=rules) == Choice("ring", 8)
        array = np.arange(64, dtype=np.float32)
        await dist.all_reduce(array)
        assert array.tolist() == [3.0 * i for i in range(64)]

    await run_ranks(3, rank)


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("{}", "its format is not")])
async def test_a_table_that_is_none_is_refused_before_the_ranks_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("AIODIST_TABLE", str(path))

    with pytest.raises(InvalidUsageError, match=f"AIODIST_TABLE=.*{said}"):
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=2)
    assert not dist.is_initialized()


def test_wrong_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "barrier"]) == USAGE_ERROR
    assert "nothing to choose for 'barrier'; there is for broadcast" in capsys.readouterr().err
    assert main(["tune", "-o", str(tmp_path / "none" / "table.json")]) == 1
    assert "No such file" in capsys.readouterr().err
