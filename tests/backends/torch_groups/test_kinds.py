from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

import aiodist as dist
from aiodist.backends.torch_groups.kinds import Gloo, Nccl, all_say, check_devices
from aiodist.backends.torch_groups.reduce_ops import reducing
from aiodist.tensors import dtype_named


def test_ranks_that_share_a_gpu_are_named_with_the_way_out() -> None:
    with pytest.raises(dist.InvalidUsageError, match=r"ranks 3 and 7 share the GPU b; .*aiodist"):
        check_devices([(1, "a"), (3, "b"), (7, "b")])
    check_devices([(0, "a"), (1, "b")])
    check_devices([(0, ""), (1, "")])  # no rank has a tensor yet


def test_every_rank_gets_the_values_of_all_ranks() -> None:
    store = HashStore()
    heard: dict[int, list[tuple[int, str]]] = {}

    def one(number: int) -> None:
        heard[number] = all_say(store, f"gpu of {number}", [4, 2], number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard[0] == heard[1] == [(4, "gpu of 0"), (2, "gpu of 1")]


@pytest.mark.parametrize(
    "launcher",
    [{"LOCAL_RANK": "3"}, {"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3"}],
)
def test_a_launcher_names_the_gpu_of_a_rank(
    launcher: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert Nccl().place(None) == torch.device("cuda", 1)
    assert Nccl().place(0) == Nccl().place("cuda:0") == torch.device("cuda", 0)


def test_an_error_of_nccl_gets_advice() -> None:
    text = "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"
    assert Nccl().explain(text).startswith(text)
    assert 'use backend "aiodist"' in Nccl().explain(text)
    assert Nccl().explain("unhandled cuda error") == "unhandled cuda error"


def test_a_float_is_multiplied_by_an_integer_beyond_64_bits_as_in_our_own_engine() -> None:
    plan = reducing(dist.ReduceOp.premul_sum(10**20), dtype_named("float32"), 2, Gloo())
    data = torch.ones(2)
    assert plan.prepare is not None
    plan.prepare(data)
    assert data.tolist() == torch.tensor([1e20, 1e20]).tolist()


def test_a_gpu_counts_once_for_each_of_nccls_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a")
    )
    store = HashStore()

    def meet(number: int, host: str | None) -> None:
        if host is None:
            monkeypatch.delenv("NCCL_HOSTID", raising=False)
        else:
            monkeypatch.setenv("NCCL_HOSTID", host)
        store.set(f"device/{1 - number}", store.get("seen") if number else b"")
        Nccl().meet(store, [4, 2], number, 0)

    for first, second in ((None, None), ("x", "x"), ("x", "y")):
        store.set("seen", b"")
        meet(0, first)
        store.set("seen", store.get("device/0"))
        if first == second:
            with pytest.raises(dist.InvalidUsageError, match="ranks 4 and 2 share the GPU"):
                meet(1, second)
        else:
            meet(1, second)
