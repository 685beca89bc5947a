from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
import torch

import aiodist as dist
from aiodist.backends import registry, torch_groups
from aiodist.backends.native import NativeBackend
from aiodist.backends.registry import OFFERS, backend_named, served, why_not
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.testing.in_process import run_ranks
from aiodist.types import Backend
from tests.engine.conftest import engine_of


@pytest.mark.parametrize("name", ["aiodist", "gloo", "nccl", "mpi", "torch:gloo", "torch:nccl"])
def test_names_of_backends(name: str) -> None:
    assert Backend(name.upper()) == name
    assert Backend(name).by_device() == {}


def test_a_backend_for_each_device() -> None:
    assert Backend("cpu:aiodist, cuda:NCCL") == "cpu:aiodist,cuda:nccl"
    assert Backend("cpu:torch:gloo,cuda:nccl").by_device() == {"cpu": "torch:gloo", "cuda": "nccl"}
    assert Backend("cpu:mpi").by_device() == {"cpu": "mpi"}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu:",
        "tpu:gloo",
        "torch:",
        "gloo,nccl",
        "cpu:gloo,cpu:mpi",
        "cpu:gloo,nccl",
        "cpu:cpu:gloo",
    ],
)
def test_names_of_no_backend(name: str) -> None:
    with pytest.raises(InvalidUsageError, match="Invalid backend"):
        Backend(name)


def test_an_unavailable_backend_says_why() -> None:
    for name in Backend.backend_list:
        if name not in OFFERS and name != Backend.UNDEFINED:
            assert why_not(name)
            with pytest.raises(dist.InvalidUsageError, match=f"'{name}' is not available here"):
                backend_named(name)
    assert why_not("gloo") == ""
    assert backend_named(None) == "aiodist"


def test_why_a_mix_cannot_run() -> None:
    assert why_not("cpu:torch:gloo,cuda:aiodist") == ""
    assert "takes cuda tensors, not cpu" in why_not("cpu:nccl")
    assert "takes cpu tensors, not cuda" in why_not("cuda:torch:gloo")
    if why_not("nccl"):
        assert why_not("cpu:aiodist,cuda:nccl") == f"'nccl' cannot run: {why_not('nccl')}"


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [
        (1, "", "aiodist"),
        (2, "", "cpu:aiodist,cuda:nccl"),
        (2, "2", "cpu:aiodist,cuda:nccl"),
        (2, "4", "aiodist"),  # some would share one, which NCCL refuses
    ],
)
def test_the_default_with_several_gpus(
    gpus: int, ranks: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver").touch()
    monkeypatch.setattr(registry, "_DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.setattr(registry, "why_not", lambda name: "")
    monkeypatch.setattr(torch_groups, "count_gpus", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert registry.default_backend() == expected


def test_a_sandbox_that_hides_the_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, **_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert registry.default_backend() == "aiodist"


def test_whose_tensors_a_backend_takes() -> None:
    assert served(Backend("torch:gloo")) == {"cpu": "torch:gloo"}
    assert served(Backend("cpu:aiodist,cuda:nccl")) == {"cpu": "aiodist", "cuda": "nccl"}
    assert dist.get_default_backend_for_device("cpu") == "aiodist"
    assert dist.get_default_backend_for_device(torch.device("cpu")) == "aiodist"
    with pytest.raises(dist.InvalidUsageError, match="no backend serves meta tensors"):
        dist.get_default_backend_for_device("meta")


class Recording(NativeBackend):
    def __init__(self, group: GroupEngine) -> None:
        super().__init__(group)
        self.seen: list[str] = []

    async def ready(self, deadline: Deadline) -> None:
        self.seen.append("ready")

    def close(self) -> None:
        self.seen.append("close")


async def test_a_group_tells_its_backend_of_its_end() -> None:
    made: list[Recording] = []

    async def body(rank: int) -> None:
        group = await dist.new_group()
        made.append(Recording(engine_of(group)))
        engine_of(group).backend = made[-1]
        await dist.barrier(group)
        await dist.destroy_process_group(group)

    await run_ranks(2, body)
    assert [backend.seen for backend in made] == [["close"], ["close"]]


async def test_a_message_carried_by_other_means() -> None:
    async def body(rank: int) -> None:
        group = dist.group.WORLD

        async def carry(context: MessageContext) -> str:
            await engine_of(group).next_turn()
            context.matched(1)
            return "there"

        work = engine_of(group).message("recv", None, 7, carry)
        assert not work.is_completed()
        assert await work == "there"
        assert work.source_rank() == 1

        async def never(context: MessageContext) -> None:
            while True:
                await engine_of(group).next_turn()

        late = engine_of(group).message("send", 1 - rank, 0, never, timeout=0.01)
        with pytest.raises(dist.CollectiveTimeoutError, match=f"send to rank {1 - rank}"):
            await late

    await run_ranks(2, body)
