"""torch's own API in the same processes, started by ``aiodist run``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.limits import scaled
from tests.warm_python import WarmPython

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]

Job = Callable[[str], list[str]]


@pytest.fixture
def job(tmp_path: Path, warm_python: WarmPython) -> Iterator[Job]:
    """Run a script in two ranks, which have to succeed; returns the lines that they print."""
    started: list[subprocess.Popen[str]] = []

    def run(source: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text("import os, sys, torch\nimport torch.distributed as torch_dist\n")
        with path.open("a") as file:
            file.write("import aiodist.sync as dist\n" + textwrap.dedent(source))
        process = subprocess.Popen(
            (
                *(sys.executable, "-m", "aiodist", "run", "--no-python", "-n", "2"),
                *(*warm_python.command, str(path)),
            ),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        out, err = process.communicate(timeout=scaled(100))
        assert process.returncode == 0, out + err
        # Gloo of torch 2.9 prints lines on stdout.
        return sorted(line for line in out.splitlines() if "[Gloo]" not in line)

    yield run
    for process in started:
        if process.poll() is None:  # the launcher ends its ranks
            process.terminate()
        process.communicate()


def test_both_apis_meet_at_one_port_in_either_order(job: Job) -> None:
    """One group of either API may go before the other, and both may come again."""
    said = job(
        """
        kept = []  # torch 2.6 may wait for ever for a thread of Gloo's that frees the last tensor

        def both(first, second):
            first(), second()
            ours, torchs = torch.ones(3), torch.ones(3)
            kept.append(torchs)
            dist.all_reduce(ours)
            torch_dist.all_reduce(torchs)
            assert ours.tolist() == torchs.tolist() == [2.0] * 3

        def end(first, second):
            first.destroy_process_group()
            t = torch.ones(1)
            kept.append(t)
            second.all_reduce(t)
            assert t.item() == 2.0
            group = second.new_group()
            assert second.get_world_size(group) == 2
            second.barrier(group)  # Gloo fails on a rank that still connects when the other has left
            second.destroy_process_group()

        # torch's store ends with rank 0's group, and a rank that comes back early can still meet the
        # old one. So where torch's group ended last, the blocking API's is the first to come back.
        for backend in ("gloo", "aiodist"):
            init_torch = lambda: torch_dist.init_process_group(backend)
            both(init_torch, dist.init_process_group)
            end(torch_dist, dist)
            both(init_torch, dist.init_process_group)
            end(dist, torch_dist)
            both(dist.init_process_group, init_torch)
            end(dist, torch_dist)
            both(dist.init_process_group, init_torch)
            end(torch_dist, dist)
        print("done")
        """
    )
    assert said == ["[0] done", "[1] done"]


def test_a_script_for_torch_needs_another_import_line_alone(job: Job) -> None:
    """DistributedSampler and DistributedDataParallel find their group, and learn what Gloo learns."""
    said = job(
        """
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset
        from torch.utils.data.distributed import DistributedSampler

        # torch's Gloo can hang when a model is freed: its thread gives back a tensor, for which it needs
        # the interpreter, while the main thread holds that and waits for the thread.
        kept = []

        def train(dist):
            dist.init_process_group("gloo")
            torch.manual_seed(0)
            data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
            sampler = DistributedSampler(data)
            net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
            model = DistributedDataParallel(net.append(torch.nn.Linear(8, 1)))
            kept.append(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            total = torch.zeros(1)
            for epoch in range(2):
                sampler.set_epoch(epoch)
                for given, wanted in DataLoader(data, 4, sampler=sampler, num_workers=epoch):
                    loss = torch.nn.functional.mse_loss(model(given), wanted)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += loss.detach()
            dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
            dist.barrier()
            dist.destroy_process_group()
            assert not torch_dist.is_initialized()
            return [total, *model.state_dict().values()]

        if __name__ == "__main__":  # not in the loader's workers, which import this from Python 3.14 on
            aiodist, gloo = train(dist), train(torch_dist)
            assert len(gloo) == len(aiodist)
            for one, other in zip(aiodist, gloo):
                torch.testing.assert_close(one, other)
            print("done", flush=True)
            os._exit(0)  # frees no model
        """
    )
    assert said == ["[0] done", "[1] done"]


def test_torchs_group_is_the_blocking_apis_own(job: Job) -> None:
    """One order of operations; sub-groups, also of Gloo; the end of either is the end of both."""
    said = job(
        """
        from datetime import timedelta
        hook = sys.excepthook
        for end in (dist, torch_dist, dist):
            dist.init_process_group(timeout=60)
            rank = dist.get_rank()
            assert (torch_dist.get_rank(), torch_dist.get_world_size()) == (rank, 2)
            assert torch_dist.get_backend() == "aiodist"
            assert sys.excepthook is hook
            t = torch.ones(2)
            for api in (dist, torch_dist, dist):
                api.all_reduce(t)
            assert t.tolist() == [8.0, 8.0]
            gloo = torch_dist.new_group(backend="gloo")
            for group in (gloo, torch_dist.new_group([0, 1])):
                torch_dist.broadcast(t, 1, group=group)
            try:
                dist.barrier(gloo)
            except TypeError as error:
                assert "must be a ProcessGroup of aiodist, not ProcessGroup" in str(error)
            else:
                raise AssertionError("a group of Gloo was taken")
            mesh = torch_dist.init_device_mesh("cpu", (2,))
            for group in (torch_dist.group.WORLD, mesh.get_group(), torch_dist.new_group([1])):
                t = torch.tensor([rank])
                if rank or torch_dist.get_world_size(group) == 2:
                    dist.broadcast(t, 1, group)
                    assert t.item() == 1
                    assert dist.get_rank(group) == torch_dist.get_rank(group)
            objects = [None, None]
            torch_dist.all_gather_object(objects, rank)
            assert objects == [0, 1]
            one, other = (dist, torch_dist) if rank else (torch_dist, dist)
            try:
                one.all_reduce(torch.ones(2 + rank))
            except dist.CollectiveMismatchError:
                print("mismatch")
            other.barrier()
            one.barrier()
            end.destroy_process_group()
            assert not dist.is_initialized()
            assert not torch_dist.is_initialized()
        """
    )
    assert said == [f"[{rank}] mismatch" for rank in (0, 1) for _ in range(3)]


@pytest.mark.compiler
@pytest.mark.slow
def test_compiled_functions_call_the_blocking_api_without_warnings(job: Job) -> None:
    said = job(
        """
        import warnings
        from torch._dynamo.utils import counters

        def step(x):
            total = x * x
            dist.all_reduce(total)
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, total + dist.get_rank())
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            whole = torch.stack(parts)
            dist.broadcast(whole, 0)
            dist.barrier()
            return whole.sum() + x + dist.broadcast_object(dist.get_rank() + 1, 1)

        dist.init_process_group()
        compiled = torch.compile(step, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(3):
                given = torch.arange(4.0) + dist.get_rank() + number
                assert torch.equal(compiled(given.clone()), step(given.clone()))
        assert counters["graph_break"]
        assert not any("portal" in reason for reason in counters["graph_break"])
        dist.destroy_process_group()
        print("done")
        """
    )
    assert said == ["[0] done", "[1] done"]


def test_torchs_group_can_be_declined_and_asked_for(job: Job) -> None:
    said = job(
        """
        dist.init_process_group(torch_group=False)
        assert not torch_dist.is_initialized()
        dist.destroy_process_group()
        os.environ["AIODIST_TORCH_GROUP"] = "0"
        dist.init_process_group()
        assert not torch_dist.is_initialized()
        dist.destroy_process_group()
        os.environ["AIODIST_TORCH_GROUP"] = "yes"
        try:
            dist.init_process_group()
        except dist.InvalidUsageError as error:
            print(error)
        assert not dist.is_initialized()
        os.environ["AIODIST_TORCH_GROUP"] = "0"
        torch_dist.init_process_group("gloo")
        try:
            dist.init_process_group(torch_group=True)
        except ValueError as error:
            print(error)
        assert not dist.is_initialized()
        torch_dist.barrier()
        torch_dist.destroy_process_group()
        dist.init_process_group(torch_group=True)
        assert torch_dist.is_initialized()
        try:
            torch_dist.init_process_group("gloo")  # what was asked for gives way to nothing
        except ValueError as error:
            print(error)
        dist.destroy_process_group()
        """
    )
    words = ["AIODIST_TORCH_GROUP must be 0 or 1, not 'yes'"]
    words += ["trying to initialize the default process group twice!"] * 2
    assert said == [f"[{rank}] {line}" for rank in (0, 1) for line in words]


def test_a_forked_child_and_a_shrunk_group_have_torchs_group_anew(job: Job) -> None:
    said = job(
        """
        dist.init_process_group()
        own = f"file://{os.getcwd()}/child{dist.get_rank()}"  # at one port the children would meet
        child = os.fork()
        if child == 0:
            dist.init_process_group(init_method=own, rank=0, world_size=1)
            t = torch.ones(1)
            torch_dist.all_reduce(t)
            os._exit(torch_dist.get_world_size() + int(t.item()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        torch_dist.barrier()
        if dist.get_rank() == 0:
            os._exit(0)
        t = torch.ones(1)
        try:
            torch_dist.all_reduce(t)
        except dist.PeerLostError:
            dist.shrink()
        torch_dist.all_reduce(t)
        assert torch_dist.new_group([0]) is not None
        print(torch_dist.get_rank(), torch_dist.get_world_size(), t.item())
        dist.destroy_process_group()
        """
    )
    assert said == ["[1] 0 1 1.0"]


def test_a_world_of_one_thread_leaves_torch_alone(run_threads: Callable[..., list[bool]]) -> None:
    import torch.distributed as torch_dist

    assert run_threads(2, lambda rank: torch_dist.is_initialized()) == [False, False]


def test_torchs_group_cannot_be_asked_for_without_torch(tmp_path: Path) -> None:
    program = """
import aiodist.sync as dist
try:
    dist.init_process_group(rank=0, world_size=1, torch_group=True)
except dist.InvalidUsageError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch is not imported" in done.stdout


def test_a_rank_that_rejoins_is_told_before_the_members_wait_for_it(tmp_path: Path) -> None:
    """It would be a member, and raise: the others would wait for it."""
    program = """
import aiodist.sync as dist
try:
    dist.rejoin(dist.HashStore(), rank=1, timeout=0.05)
except dist.DistError as error:
    print(type(error).__name__, error)
print(dist.is_initialized())
"""
    command = [sys.executable, "-c", program]
    environ = os.environ | {"AIODIST_TORCH_GROUP": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    error, initialized = done.stdout.splitlines()
    assert error.startswith("InvalidUsageError torch_group=True or AIODIST_TORCH_GROUP=1")
    assert initialized == "False"
