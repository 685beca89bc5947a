"""``aiodist tune``, and jobs that load what it writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives.rule_tables import decode, encode, rows_of
from aiodist.collectives.select import HOSTS_RULES, MANY, SHARED_RULES, Choice, Rule, select
from aiodist.collectives.shm_choice import ALGORITHMS
from aiodist.commands.main import main
from aiodist.errors import InvalidUsageError
from aiodist.groups.world import current_world
from aiodist.launch.starting import USAGE_ERROR
from aiodist.shm.group_area import LARGEST_SLOT_BYTES, SLOT_BYTES
from aiodist.testing import run_ranks
from aiodist.tuning.candidates import candidates, shared_candidates
from aiodist.tuning.tuning_rank import Runs


def test_candidates_differ_and_fit() -> None:
    found = candidates("all_reduce", 4, 1 << 20)
    assert {choice.algorithm for choice in found} == {"doubling", "halving_doubling", "ring"}
    chunks = [choice.chunk for choice in found if choice.algorithm == "ring"]
    assert chunks == [64 << 10, 128 << 10, 256 << 10]  # the last one holds a whole block
    assert "doubling" not in {choice.algorithm for choice in candidates("all_gather", 3, 1024)}


@pytest.mark.parametrize(
    ("operation", "ranks", "nbytes", "names"),
    [
        ("all_reduce", 2, LARGEST_SLOT_BYTES, ["slots", "exchange", "chain", "stripes"]),
        ("all_reduce", 2, LARGEST_SLOT_BYTES + 4, ["exchange", "chain", "stripes"]),
        ("all_reduce", 3, 4, ["slots", "chain", "stripes"]),
        ("broadcast", 4, LARGEST_SLOT_BYTES + 4, ["chunks"]),
        ("all_gather", 4, 4 * LARGEST_SLOT_BYTES, ["slots", "chunks"]),
        ("all_gather", 4, 4 * LARGEST_SLOT_BYTES + 4, ["chunks"]),
    ],
)
def test_candidates_in_memory_fit(
    operation: str, ranks: int, nbytes: int, names: list[str]
) -> None:
    found = shared_candidates(operation, ranks, nbytes)
    assert [choice.algorithm for choice in found] == names


async def test_measures_writes_and_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    argv = ["tune", "all_reduce", "broadcast", "-n", "2", "-s", "64,8K", "--seconds", "0"]
    assert await asyncio.to_thread(main, [*argv, "-o", str(path)]) == 0
    told = capfd.readouterr().err
    assert "all_reduce 8192 bytes, 2 ranks: " in told
    line = next(line for line in told.splitlines() if "all_reduce 64 bytes, 2 ranks, in sh" in line)
    assert all(name in line for name in ("slots", "exchange", "stripes"))
    tables = decode(path.read_text())
    for rules in (tables.messages, tables.shared):
        assert rules["all_reduce"][0].least == rules["all_reduce"][0].ranks == 2
    assert json.loads(path.read_text())["machine"]["cores"]
    assert "all ranks live on one host: the table for several hosts is not measured" in told
    assert tables.hosts == HOSTS_RULES

    async def rank(number: int) -> None:
        assert current_world().tables == tables
        array = np.full(5, number + 1.0)
        await dist.all_reduce(array)
        assert array.tolist() == [3.0] * 5

    monkeypatch.setenv("AIODIST_TABLE", str(path))
    await run_ranks(2, rank)


async def test_all_ranks_go_by_rank_0s_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    path.write_text(encode({"all_reduce": rows_of(3, [(4, Choice("ring", 8))])}, {}, {}, {}))
    monkeypatch.setenv("AIODIST_TABLE", str(path))

    async def rank(number: int) -> None:
        rules = current_world().tables.messages
        assert select("all_reduce", 3, 1 << 10, rules=rules) == Choice("ring", 8)
        array = np.arange(64, dtype=np.float32)
        await dist.all_reduce(array)
        assert array.tolist() == [3.0 * i for i in range(64)]

    await run_ranks(3, rank)


async def test_without_shared_memory_its_table_stays_ours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_TRANSPORT", "tcp")
    path = tmp_path / "table.json"
    argv = ["tune", "broadcast", "-n", "2", "-s", "64", "--seconds", "0", "-o", str(path)]
    assert await asyncio.to_thread(main, argv) == 0
    assert "do not all share memory here" in capfd.readouterr().err
    assert decode(path.read_text()).shared == SHARED_RULES


def _forced(ranks: int, way: str) -> str:
    """Slots for all that they hold, or for nothing; ``way`` where there is such a one."""
    rows = {}
    for operation, names in ALGORITHMS.items():
        slots = [Rule(ranks, LARGEST_SLOT_BYTES, Choice("slots"), least=ranks)]
        name = way if way in names[1:] else names[-1]
        rows[operation] = [
            *(slots if way == "slots" else []),
            Rule(ranks, MANY, Choice(name), least=ranks),
        ]
    return encode({}, rows, {}, {})


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", ["slots", "stripes", "chain"])
async def test_a_job_goes_by_the_table_in_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, way: str
) -> None:
    """Results are the same for any length. No chunk is used where slots are forced."""
    path = tmp_path / "table.json"
    path.write_text(_forced(ranks, way))
    monkeypatch.setenv("AIODIST_TABLE", str(path))
    total = ranks * (ranks + 1) / 2

    async def rank(number: int) -> None:
        await dist.barrier()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        for count in (0, 1, ranks, 1_001, SLOT_BYTES // 4 // ranks):
            before = communicator.chunks_used
            mine = np.full(count, number + 1.0, np.float32)
            summed, reduced, sent = mine.copy(), mine.copy(), mine.copy()
            places = [np.empty_like(mine) for _ in range(ranks)]
            own = np.empty_like(mine)
            steps = (
                lambda a=summed: dist.all_reduce(a),
                lambda a=reduced: dist.reduce(a, ranks - 1),
                lambda a=sent: dist.broadcast(a, ranks - 1),
                lambda a=mine, p=places: dist.all_gather(p, a),
                lambda a=own, m=mine: dist.reduce_scatter(a, [m] * ranks),
            )
            for step in steps:
                await step()
                assert (communicator.chunks_used == before) == (way == "slots")
                before = communicator.chunks_used
            assert (summed == total).all()
            assert (reduced == (total if number == ranks - 1 else number + 1)).all()
            assert (sent == ranks).all()
            assert all((place == i + 1).all() for i, place in enumerate(places))
            assert (own == total).all()

    await run_ranks(ranks, rank, "shm", timeout=20)


async def test_a_run_goes_by_its_choice() -> None:
    async def rank(number: int) -> None:
        await dist.barrier()
        group = current_world().default_group()
        assert group.communicator is not None
        for operation, names in ALGORITHMS.items():
            runs = Runs(operation, group, 64, "shared")
            for name in names * 2:
                before = group.communicator.chunks_used
                await runs.start(Choice(name))
                assert (group.communicator.chunks_used == before) == (name == "slots"), name

    await run_ranks(2, rank, "shm", timeout=20)


async def test_data_larger_than_the_groups_slots_uses_chunks() -> None:
    """Whatever is asked for: a segment may have had little room."""

    async def rank(number: int) -> None:
        await dist.barrier()
        group = current_world().default_group()
        assert group.communicator is not None
        assert group.communicator.shape.slot_bytes < 1 << 20
        for operation in ALGORITHMS:
            before = group.communicator.chunks_used
            await Runs(operation, group, 1 << 20, "shared").start(Choice("slots"))
            assert group.communicator.chunks_used > before

    await run_ranks(2, rank, "shm", timeout=20)


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
    assert (
        "there is no operation to choose for 'barrier': there are broadcast"
        in capsys.readouterr().err
    )
    assert main(["tune", "-n", "1,2"]) == USAGE_ERROR
    assert "one rank has nothing to choose" in capsys.readouterr().err
    for seconds in ("-1", "inf"):
        assert main(["tune", "--seconds", seconds]) == USAGE_ERROR
        said = f"--seconds must be 0 or more and finite, not {seconds}"
        assert said in capsys.readouterr().err
    assert main(["tune", "-o", str(tmp_path / "none" / "table.json")]) == USAGE_ERROR
    assert "No such file" in capsys.readouterr().err
