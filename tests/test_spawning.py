"""`spawn`: torch's meaning, with the rendezvous ready in the children."""

from __future__ import annotations

import asyncio
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from aiodist.errors import GroupRevokedError, InvalidUsageError
from aiodist.spawning import spawn
from tests.limits import scaled

torch_spawn = pytest.importorskip("torch.multiprocessing.spawn")

NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "AIODIST_SECRET", "AIODIST_RUN_ID"),
    "TORCHELASTIC_USE_AGENT_STORE",
)


def note(i: int, folder: str, text: str, about: str = "rank") -> None:
    Path(folder, f"{about}{i}").write_text(text)


def tell(i: int, folder: str) -> None:
    words = [os.environ.get(name, "unset") for name in NAMES]
    note(i, folder, " ".join(words))


async def tell_async(i: int, folder: str) -> None:
    await asyncio.sleep(0)
    tell(i, folder)
    note(i, folder, type(asyncio.get_running_loop()).__module__, "loop")


def fail(i: int) -> None:
    if i == 1:
        raise ValueError("boom in rank 1")


async def fail_async(i: int) -> None:
    fail(i)


def fail_after_the_report(i: int, folder: str) -> None:
    """Rank 0 reports the failure of rank 1, and has ended when rank 1 raises."""
    if i == 0:
        note(i, folder, "reports")
        raise GroupRevokedError("rank 1 aborted group 'g'")
    reported = Path(folder, "rank0")
    while not reported.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    fail(i)


def only_report(i: int) -> None:
    if i == 0:
        raise GroupRevokedError("rank 1 aborted group 'g'")
    time.sleep(600)


def leave(i: int) -> None:
    os._exit(7)


def fail_on_a_full_disk(i: int) -> None:
    """Rank 0 fails, and its traceback cannot be written."""
    if i:
        time.sleep(600)
    pickle.dump = refuse_to_dump
    raise ValueError("boom in rank 0")


def refuse_to_dump(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def listen(i: int) -> None:
    if i == 0:
        socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))).close()


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("RANK", "9")


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("forkserver", marks=pytest.mark.extended), "spawn"]
)
def test_children_find_the_rendezvous_ready_and_run_coroutines_under_uvloop(tmp_path, method):
    before = dict(os.environ)
    assert spawn(tell_async, (str(tmp_path),), nprocs=2, start_method=method) is None
    assert dict(os.environ) == before
    told = [(tmp_path / f"rank{i}").read_text().split() for i in range(2)]
    assert [words[:5] for words in told] == [
        [str(i), str(i), "2", "2", "127.0.0.1"] for i in (0, 1)
    ]
    assert told[0][5:] == told[1][5:]
    port, secret, run_id, agent = told[0][5:]
    assert int(port) > 1023
    assert len(bytes.fromhex(secret)) == 32
    assert run_id == "unset"  # ranks of several calls, on several machines, may be one job
    assert agent == "unset"
    assert [(tmp_path / f"loop{i}").read_text() for i in range(2)] == ["uvloop"] * 2


def test_without_uvloop_asyncio_runs_the_coroutine(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    spawn(tell_async, (str(tmp_path),), start_method="fork")
    assert (tmp_path / "loop0").read_text().startswith("asyncio")


@pytest.mark.parametrize("fn", [fail, fail_async])
def test_an_exception_reaches_the_parent_with_its_traceback(fn):
    with pytest.raises(torch_spawn.ProcessRaisedException, match="boom in rank 1") as caught:
        spawn(fn, nprocs=2, start_method="fork")
    assert caught.value.error_index == 1
    assert "Traceback" in str(caught.value)


def test_the_cause_is_raised_and_not_the_report_of_another_rank(tmp_path):
    with pytest.raises(torch_spawn.ProcessRaisedException, match="boom in rank 1") as caught:
        spawn(fail_after_the_report, (str(tmp_path),), nprocs=2, start_method="fork")
    assert caught.value.error_index == 1


def test_a_report_of_another_rank_is_raised_if_no_cause_follows(monkeypatch):
    monkeypatch.setattr("aiodist.spawning.SETTLE", 0.2)
    with pytest.raises(torch_spawn.ProcessRaisedException, match="rank 1 aborted") as caught:
        spawn(only_report, nprocs=2, start_method="fork")
    assert caught.value.error_index == 0


def test_an_exit_code_reaches_the_parent():
    with pytest.raises(torch_spawn.ProcessExitedException) as caught:
        spawn(leave, start_method="fork")
    assert caught.value.exit_code == 7


def test_a_process_whose_traceback_could_not_be_written_ends_the_others():
    with pytest.raises(torch_spawn.ProcessExitedException, match="exit code 1"):
        spawn(fail_on_a_full_disk, nprocs=2, start_method="fork")
    assert not multiprocessing.active_children()


def test_rank_0_can_listen_on_the_reserved_port():
    spawn(listen, nprocs=np.int64(2), start_method="fork")


def test_without_join_the_context_holds_the_reservation(tmp_path):
    context = spawn(tell, (str(tmp_path),), nprocs=2, join=False, start_method="fork")
    assert isinstance(context, torch_spawn.ProcessContext)
    while not context.join():
        pass
    port = int((tmp_path / "rank0").read_text().split()[5])
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    gone = weakref.ref(context)
    del context
    gc.collect()
    assert gone() is None
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", port))


def test_a_process_that_begins_after_the_end_of_its_parent_does_nothing(tmp_path):
    reading, writing = os.pipe()  # its end comes when all that inherited the other side have ended
    parent = os.fork()
    if not parent:
        try:
            me = os.getpid()

            def wait_for_its_end() -> None:
                while os.getppid() == me:
                    time.sleep(0.01)

            os.register_at_fork(after_in_child=wait_for_its_end)
            spawn(note, (str(tmp_path), ""), 1, join=False, start_method="fork")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    os.waitpid(parent, 0)
    with open(reading, "rb") as stream:
        assert stream.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_the_users_secret_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("AIODIST_SECRET", "mine")
    monkeypatch.setenv("AIODIST_RUN_ID", "run")
    spawn(tell, (str(tmp_path),), start_method="fork")
    assert (tmp_path / "rank0").read_text().split()[6:8] == ["mine", "run"]


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"args": 3}, TypeError, "args must be a list, not int"),
        ({"args": "ab"}, TypeError, "args must be a list, not str"),
        ({"nprocs": 0}, InvalidUsageError, "nprocs must be at least 1"),
        ({"nprocs": 1.5}, TypeError, "nprocs must be an int"),
        ({"nprocs": True}, TypeError, "nprocs must be an int"),
        ({"fn": 3}, TypeError, "fn must be a function"),
        ({"fn": lambda i: None}, TypeError, "top level of a module"),
        ({"start_method": "thread", "fn": tell}, ValueError, "thread"),
    ],
)
def test_invalid_arguments_are_refused(kwargs, error, words):
    with pytest.raises(error, match=words):
        spawn(**({"fn": tell} | kwargs))


def test_a_function_typed_in_interactively_is_refused():
    script = "from aiodist.spawning import spawn\ndef fn(i): pass\nspawn(fn)\n"
    for source in (["-c", script], ["-"]):
        done = subprocess.run(
            [sys.executable, *source],
            input=script,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "TypeError" in done.stderr
        assert "was defined interactively" in done.stderr


def test_importing_spawn_does_not_import_torch():
    script = "import sys, aiodist.spawning; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=scaled(60))
