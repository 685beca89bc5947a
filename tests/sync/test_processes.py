"""Whole programs: the end without destroy, Ctrl-C, forks, and scripts written for torch."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limits import scaled

pytestmark = pytest.mark.timeout(120)

Script = Callable[..., subprocess.Popen[str]]

START = """
    import os, sys
    import numpy as np
    import aiodist.sync as dist
    path, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
"""


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=scaled(60))
    return process.returncode, out, err


def test_a_receive_times_out_and_is_cancelled_in_the_callers_thread(
    script: Script, tmp_path: Path
) -> None:
    """By its own timeout, in ``synchronize()``, by the timeout of ``wait()``, and by ``cancel()``."""
    source = (
        START
        + """
    import threading
    def timed_out(wait):
        try:
            wait()
        except dist.CollectiveTimeoutError as error:
            return "after 0.01 s" in str(error)
    if rank == 0:
        into = np.zeros(1)
        print(timed_out(lambda: dist.recv(into, 1, tag=1, timeout=0.01)))
        work = dist.irecv(into, 1, tag=2, timeout=0.01)
        print(timed_out(work.synchronize), work.is_completed())
        work = dist.irecv(into, 1, tag=3)
        print(work.is_completed(), timed_out(lambda: work.wait(timeout=0.01)))
        work = dist.irecv(into, 1, tag=4)
        called, late = threading.Event(), threading.Event()
        work._when_done(called.set)
        print(work.cancel(), called.wait(5), work.cancel())
        print(isinstance(work.exception(), BaseException))
        work._when_done(late.set)
        print(late.is_set())
    dist.barrier()
    dist.destroy_process_group()
    """
    )
    first, second = (script(source, tmp_path / "store", rank) for rank in range(2))
    code, out, err = finish(first)
    assert code == 0, err
    assert out.split() == [
        "True",
        "True",
        "True",
        "False",
        "True",
        "True",
        "True",
        "False",
        "True",
        "True",
    ]
    assert finish(second)[0] == 0


def test_leaving_without_destroy_delivers_sent_messages_and_says_goodbye(
    script: Script, tmp_path: Path
) -> None:
    source = (
        START
        + """
    big = np.arange(1 << 20, dtype=np.float64)
    if rank == 0:
        dist.recv(np.zeros(1), 1)           # the other is up
        works = [
            dist.isend(big, 1, tag=1),          # too large for one go; no call waits for it here
            dist.isend(np.ones(1), 1),
            dist.irecv(np.zeros(1), 1, tag=9),  # never comes
        ]
        for work in works:
            work.is_completed()                 # asked once, so that no warning is due
        if sys.argv[3] == "exit":
            sys.exit(3)
        if sys.argv[3] == "error":
            raise KeyError("the program's own")
    else:
        dist.send(np.ones(1), 0)
        data = np.zeros(1)
        dist.recv(data, 0)
        into = np.zeros_like(big)
        dist.recv(into, 0, tag=1)
        print(data[0], bool((into == big).all()))
        try:
            dist.recv(data, 0)
        except dist.PeerLostError as error:
            print("lost", error.rank)
    """
    )
    for how, code in (("end", 0), ("exit", 3), ("error", 1)):
        path = tmp_path / how
        ranks = [script(source, path, rank, how) for rank in (0, 1)]
        (code0, out0, err0), (code1, out1, err1) = map(finish, ranks)
        assert (code1, out1, err1) == (0, "1.0 True\nlost 0\n", "")
        assert (code0, out0) == (code, "")
        if how == "error":
            assert err0.startswith("Traceback")
            assert err0.endswith('KeyError: "the program\'s own"\n')
            assert err0.count("Traceback") == 1
        else:
            assert err0 == ""


def test_ctrl_c_ends_a_blocking_call_at_once(script: Script, tmp_path: Path) -> None:
    source = (
        START
        + """
    dist.barrier()
    if rank == 1:
        sys.stdin.readline()
        sys.exit(0)
    work = dist.irecv(np.ones(1), 1)
    for call in (lambda: dist.all_reduce(np.ones(1)), lambda: dist.recv(np.ones(1)), work.wait):
        try:
            print("blocked", flush=True)
            call()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    assert not work.is_completed()
    work.cancel()
    print("cancelled", flush=True)
    """
    )
    ranks = [script(source, tmp_path / "store", rank) for rank in (0, 1)]
    out = ranks[0].stdout
    assert out is not None
    slowest = 0.0
    for _ in range(3):
        assert out.readline() == "blocked\n"
        time.sleep(0.2)  # the call itself shows nothing when it has begun to wait
        begin = time.monotonic()
        ranks[0].send_signal(signal.SIGINT)
        assert out.readline() == "interrupted\n"
        slowest = max(slowest, time.monotonic() - begin)
    assert slowest < scaled(1)
    assert out.readline() == "cancelled\n"  # before rank 1 leaves, whose end completes the work
    assert ranks[1].stdin is not None
    ranks[1].stdin.write("\n")
    ranks[1].stdin.flush()
    assert finish(ranks[0]) == (0, "", "")
    assert finish(ranks[1])[0::2] == (0, "")


def test_a_child_that_is_forked_after_the_end_reads_that_the_group_was_destroyed(
    script: Script, tmp_path: Path
) -> None:
    source = (
        START
        + """
    def said():
        try:
            dist.barrier()
        except dist.NotInitializedError as error:
            return str(error)
    def child():
        pid = os.fork()
        if pid == 0:
            print(said(), flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    child()
    dist.destroy_process_group()
    child()
    print(said(), flush=True)
    """
    )
    for process in [script(source, tmp_path / "store", rank) for rank in (0, 1)]:
        status, out, err = finish(process)
        assert (status, err) == (0, "")
        during, in_child, in_parent = out.splitlines()
        assert "the parent goes on with its own" in during
        assert "since destroy_process_group() or abort_process_group() closed it" in in_child
        assert in_child == in_parent


def test_a_forked_child_starts_empty_and_can_initialise_again(
    script: Script, tmp_path: Path
) -> None:
    source = (
        START
        + """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    client = dist.TCPStore("127.0.0.1", store.port)
    client.set("a", "1")
    dist.barrier()
    pid = os.fork()
    if pid == 0:
        kinds = [os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
                 for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        assert kinds.count("socket") == 0, kinds
        assert not dist.is_initialized()
        for call in (dist.barrier, dist.get_rank):
            try:
                call()
                assert False
            except dist.NotInitializedError as error:
                assert "was forked from one that has" in str(error)
        try:
            client.get("a")
            assert False
        except dist.DistStoreError:
            pass
        del client
        dist.init_process_group("gloo", f"file://{path}.child", rank=rank, world_size=2)
        data = np.ones(1)
        dist.all_reduce(data)
        assert data[0] == 2
        sys.exit(0)   # without destroy
    assert os.waitpid(pid, 0)[1] == 0
    data = np.ones(1)
    dist.all_reduce(data)   # the parent's streams have gone on
    assert data[0] == 2
    assert store.get("a") == b"1"
    client.set("b", b"2")
    assert store.get("b") == b"2"
    dist.destroy_process_group()
    store.close()
    client.close()
    import threading
    assert threading.active_count() == 1, threading.enumerate()
    dist.init_process_group("gloo", f"file://{path}.again", rank=rank, world_size=2)
    dist.barrier()
    """
    )
    ranks = [script(source, tmp_path / "store", rank) for rank in (0, 1)]
    assert [finish(rank) for rank in ranks] == [(0, "", "")] * 2


def test_a_forked_child_has_no_part_in_what_its_parent_holds(
    script: Script, tmp_path: Path
) -> None:
    """Its calls raise, and neither reach the other rank nor wait; at its end it prints nothing."""
    source = (
        START
        + """
    group = dist.new_group([0, 1])
    data, token = np.ones(4), np.ones(1)
    plan = dist.all_reduce_init(data)
    plan.run()
    dist.all_reduce(np.ones(4), group=group)
    data[:] = 1
    if rank == 0:
        late = dist.irecv(token, 1)
        pid = os.fork()
        if pid == 0:
            data[:] = 1000
            for call in (
                plan.run,
                lambda: dist.all_reduce(data, group=group),
                lambda: dist.all_gather_object([None] * 2, "child", group=group),
                lambda: dist.send(data, 1, group=group),
                late.wait,
            ):
                try:
                    call()
                    assert False, call
                except dist.NotInitializedError as error:
                    assert "was forked from one that has" in str(error)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        dist.send(token, 1)
    else:
        dist.recv(token, 0)   # after the child's calls
        dist.send(token, 0)
    plan.run()
    assert data.tolist() == [2] * 4, data
    dist.all_reduce(data, group=group)
    assert data.tolist() == [4] * 4, data
    if rank == 0:
        late.wait()
    dist.destroy_process_group()
    """
    )
    ranks = [script(source, tmp_path / "store", rank) for rank in (0, 1)]
    assert [finish(rank) for rank in ranks] == [(0, "", "")] * 2


@pytest.mark.parametrize("end", ["SystemExit(5)", "KeyboardInterrupt()"])
def test_a_callback_that_is_to_end_the_program_leaves_the_loop_to_it(
    script: Script, tmp_path: Path, end: str
) -> None:
    source = (
        START
        + f"""
    import threading
    called = threading.Event()
    def end(work):
        called.set()
        raise {end}
    if rank == 0:
        work = dist.irecv(np.ones(1), 1)
        work.add_done_callback(end)
        called.wait()     # not in a call: the loop's own thread calls back
    else:
        dist.send(np.ones(1), 0)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", f"file://{{path}}.again", rank=rank, world_size=2)
    dist.barrier()
    """
    )
    ranks = [script(source, tmp_path / "store", rank) for rank in (0, 1)]
    status, out, err = finish(ranks[0])
    assert (status, out) == (0, "")
    assert f"a callback in aiodist's thread raised {end}, which ends no other thread" in err
    assert finish(ranks[1]) == (0, "", "")


TUTORIAL = '''
    """In the style of "Writing distributed applications with PyTorch"."""
    import os, sys
    import torch
    import aiodist.sync as dist
    import torch.multiprocessing as mp
    from torch import nn

    def blocking(rank, size):
        tensor = torch.zeros(1)
        if rank == 0:
            tensor += 1
            dist.send(tensor=tensor, dst=1)
        else:
            dist.recv(tensor=tensor, src=0)
        assert tensor[0] == 1

    def non_blocking(rank, size):
        tensor = torch.zeros(1)
        req = None
        if rank == 0:
            tensor += 1
            req = dist.isend(tensor=tensor, dst=1)
        else:
            req = dist.irecv(tensor=tensor, src=0)
        req.wait()
        assert tensor[0] == 1

    def group_reduce(rank, size):
        group = dist.new_group([0, 1])
        tensor = torch.ones(1)
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        assert tensor[0] == 2

    def ring_all_reduce(send, recv):
        rank = dist.get_rank()
        size = dist.get_world_size()
        send_buff = send.clone()
        recv_buff = send.clone()
        accum = send.clone()
        left = ((rank - 1) + size) % size
        right = (rank + 1) % size
        for i in range(size - 1):
            if i % 2 == 0:
                send_req = dist.isend(send_buff, right)
                dist.recv(recv_buff, left)
                accum[:] += recv_buff[:]
            else:
                send_req = dist.isend(recv_buff, right)
                dist.recv(send_buff, left)
                accum[:] += send_buff[:]
            send_req.wait()
        recv[:] = accum[:]

    def average_gradients(model):
        size = float(dist.get_world_size())
        for param in model.parameters():
            dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
            param.grad.data /= size

    def train(rank, size):
        torch.manual_seed(1234)
        torch.set_num_threads(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        generator = torch.Generator().manual_seed(rank)
        for epoch in range(5):
            data = torch.randn(8, 3, generator=generator)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
            loss.backward()
            average_gradients(model)
            optimizer.step()
        weights = [torch.zeros(1, 3) for _ in range(size)]
        dist.all_gather(weights, model.weight.data)
        assert torch.equal(weights[0], weights[1])

    def run(rank, size):
        blocking(rank, size)
        non_blocking(rank, size)
        group_reduce(rank, size)
        send, recv = torch.full((4,), rank + 1.0), torch.zeros(4)
        ring_all_reduce(send, recv)
        assert recv.tolist() == [3.0] * 4
        if sys.argv[1] == "fork":  # the others would import torch's compiler for their optimizer
            train(rank, size)
        req = dist.broadcast(recv, 0, async_op=True)
        req.wait()
        assert req.is_completed()

    def init_process(rank, size, fn, port, backend="gloo"):
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(port)
        dist.init_process_group(backend, rank=rank, world_size=size)
        fn(rank, size)
        if sys.argv[2] == "destroy":
            dist.destroy_process_group()

    if __name__ == "__main__":
        size = 2
        if sys.argv[1] == "fork":    # the parent has used the facade, and has its thread
            parents = dist.HashStore()
            parents.set("a", "b")
            dist.init_process_group("gloo", store=parents, rank=0, world_size=1)
        mp.set_start_method(sys.argv[1])
        processes = []
        for rank in range(size):
            p = mp.Process(target=init_process, args=(rank, size, run, sys.argv[3]))
            p.start()
            processes.append(p)
        for p in processes:
            p.join()
            assert p.exitcode == 0, p.exitcode
        if sys.argv[1] == "fork":
            dist.barrier()
'''


@pytest.mark.slow
@pytest.mark.parametrize(("method", "end"), [("fork", "leave"), ("spawn", "destroy")])
def test_a_script_for_torch_runs_by_its_import_line_alone(
    method: str, end: str, script: Script
) -> None:
    from aiodist.launch.ports import reserve_port

    with reserve_port() as reserved:
        process = script(
            *(TUTORIAL, method, end, reserved.port),
            PYTHONWARNINGS="",
            OMP_NUM_THREADS="1",
        )
        assert finish(process) == (0, "", "")
