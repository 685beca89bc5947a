"""How torch learns of the backend, and unmodified scripts under both launchers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

import _aiodist_autoload
from aiodist.errors import InvalidUsageError
from tests.warm_python import WarmPython

pytestmark = pytest.mark.timeout(120)

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """``run("-c", source)``: what Python prints; in a folder without aiodist, where it is installed."""

    def python(
        *arguments: str, python: Sequence[str] = (sys.executable,), **environment: str
    ) -> str:
        done = subprocess.run(
            [*python, *map(textwrap.dedent, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return python


# Each interpreter below imports torch anew, which takes seconds: what one of them can show, one does.
ASKS_FOR_GLOO = """
dist = torch.distributed
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
pair = dist.new_group(backend="cpu:gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor, group=pair)
print(dist.get_backend(), dist.get_backend(pair), type(dist.group.WORLD).__name__)
dist.destroy_process_group()
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__)
dist.destroy_process_group()
"""

LOGGED = """
import logging
logging.basicConfig(format="%(message)s", stream=__import__("sys").stdout)
"""

NAMES_A_PLACE = """
dist.init_process_group("aiodist", init_method="aiodist://", rank=0, world_size=1)
print(dist.get_world_size())
dist.destroy_process_group()
try:
    dist.init_process_group("aiodist", init_method="aiodist://host")
except RuntimeError as error:
    print(error)
"""

DEFAULT = "ProcessGroup" if torch.cuda.is_available() else "TorchGroup"


def test_importing_torch_registers_the_backend_alone(run: Run) -> None:
    """aiodist is not imported, Gloo stays Gloo, and the URL takes rank and size, and no place."""
    source = """
import sys, torch
print(torch.distributed.Backend.AIODIST, "aiodist" in sys.modules)
print(torch.distributed.Backend.backend_capability["aiodist"])
import aiodist.torch_backend
"""
    said = run("-c", source + ASKS_FOR_GLOO + NAMES_A_PLACE).splitlines()
    said = [line for line in said if "[Gloo]" not in line]  # which torch 2.9 prints
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    assert said[:2] == ["aiodist False", f"{kinds}"]
    assert said[2].startswith("gloo")
    assert said[3:] == [
        "ProcessGroup",
        "1",
        "init_method 'aiodist://host' names a place: write \"aiodist://\" alone",
    ]


def test_where_autoload_is_off_importing_aiodist_after_torch_registers_the_backend(
    run: Run,
) -> None:
    """It does what the variable asks for, too."""
    source = """
import torch
print(hasattr(torch.distributed.Backend, "AIODIST"))
import aiodist
print(torch.distributed.Backend.AIODIST)
"""
    variables = {"AIODIST_INSTEAD_OF": "gloo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    said = run("-c", source + ASKS_FOR_GLOO, **variables)
    assert said == f"False\naiodist\ngloo cpu:gloo TorchGroup\n{DEFAULT}\n"


def test_importing_the_backend_module_registers_it(run: Run) -> None:
    source = """
        import aiodist.torch_backend, torch
        print(torch.distributed.Backend.AIODIST)
    """
    assert run("-c", source, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "aiodist\n"


def test_a_program_that_asks_for_gloo_gets_aiodist_if_the_variable_is_set(run: Run) -> None:
    """In any case of letters, and without a word. The name stays, as such programs compare it."""
    source = f"{LOGGED}import torch\n{ASKS_FOR_GLOO}"
    said = run("-c", source, AIODIST_INSTEAD_OF="Gloo")
    assert said == f"gloo cpu:gloo TorchGroup\n{DEFAULT}\n"


def test_another_name_than_gloo_in_the_variable_is_told_and_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    c10d = torch_dist.distributed_c10d
    make = c10d._new_process_group_helper
    registered = []
    for owner, name in (
        (torch_dist.Backend, "register_backend"),
        (torch_dist, "register_rendezvous_handler"),
        (_aiodist_autoload, "_leave_untraced"),
    ):
        monkeypatch.setattr(owner, name, lambda *args, name=name, **kwargs: registered.append(name))
    monkeypatch.setattr(c10d, "_maybe_attach_flight_recorder", None, raising=False)
    monkeypatch.delattr(torch_dist.Backend, "AIODIST", raising=False)
    monkeypatch.setenv("AIODIST_INSTEAD_OF", "glo")
    _aiodist_autoload.autoload()
    assert len(registered) == 3
    told = "AIODIST_INSTEAD_OF must be gloo, the one backend that aiodist replaces, not 'glo'"
    assert [record.getMessage() for record in caplog.records] == [f"{told}; it has no effect"]
    assert c10d._new_process_group_helper is make


def test_autoload_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a registry of another kind")

    monkeypatch.delattr(torch_dist.Backend, "AIODIST", raising=False)
    monkeypatch.setattr(torch_dist.Backend, "register_backend", fails)
    _aiodist_autoload.autoload()
    monkeypatch.delattr(torch_dist, "Backend")  # as in a torch without distributed
    _aiodist_autoload.autoload()


@pytest.mark.parametrize(("value", "level"), [("gloo", "WARNING"), ("", "DEBUG")])
def test_a_registration_that_fails_is_told_where_gloo_was_to_be_replaced(
    value: str, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "aiodist")
    monkeypatch.setenv("AIODIST_INSTEAD_OF", value)
    monkeypatch.delattr(torch_dist, "Backend")
    _aiodist_autoload.autoload()
    [record] = caplog.records
    assert record.levelname == level
    assert 'torch does not get the backend "aiodist": AttributeError' in record.getMessage()


@pytest.mark.parametrize("gpus", [True, False])
def test_where_there_are_gpus_torchs_default_stays_what_it_is(
    gpus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ["cpu", "cuda"] if gpus else ["cpu"]
    monkeypatch.setitem(torch_dist.Backend.backend_capability, "aiodist", kinds)
    seen = []

    def make_outside(*args: Any, **kwargs: Any) -> tuple[None, None]:
        seen.append((args, kwargs))
        return None, None

    make = _aiodist_autoload.replacing_gloo(make_outside)
    given = ("gloo", "cpu:gloo", "cpu:gloo,cuda:nccl", "undefined", "nccl", "cuda:gloo")
    for asked in given:
        make(2, 0, [], asked, "store", group_name="name")
    replaced = 2 if gpus else 4
    assert [args[3] for args, _ in seen] == ["aiodist"] * replaced + [*given[replaced:]]
    assert all(kwargs == {"group_name": "name"} for _, kwargs in seen)


MEETS = """
    import torch
    import torch.distributed as dist

    for _ in range(2):
        dist.init_process_group("aiodist", init_method="aiodist://")
        t = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(t)
        if dist.get_rank() == 0:
            print("sum", t.item(), flush=True)
        dist.destroy_process_group()
"""

# A node whose name cannot be looked up, as in a container.
SLURM = {
    "SLURM_NTASKS": "2",
    "SLURM_JOB_ID": "{port}",
    "SLURM_STEP_NODELIST": "no-such-node.invalid",
    "SLURM_NODE_ALIASES": "no-such-node.invalid:127.0.0.1:n",
    "SLURM_LOCALID": "{rank}",
    "SLURM_PROCID": "{rank}",
}
MPICH = {
    "PMI_SIZE": "2",
    "PMI_RANK": "{rank}",
    "MPI_LOCALRANKID": "{rank}",
    "MPI_LOCALNRANKS": "2",
}


@pytest.mark.parametrize("variables", [SLURM, MPICH], ids=["srun", "mpiexec"])
def test_ranks_of_other_launchers_meet_with_nothing_passed(
    variables: dict[str, str],
    tmp_path: Path,
    scaled: Callable[[float], float],
    warm_python: WarmPython,
) -> None:
    script = tmp_path / "meets.py"
    script.write_text(textwrap.dedent(MEETS))
    started = [
        subprocess.Popen(
            [*warm_python.command, str(script)],
            env={
                **os.environ,
                "TMPDIR": str(tmp_path),
                "OMP_NUM_THREADS": "1",
                **{
                    name: text.format(rank=rank, port=os.getpid())
                    for name, text in variables.items()
                },
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=scaled(25)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert [process.returncode for process in started] == [0, 0], outputs
    assert outputs[0][0] == "sum 3.0\nsum 3.0\n"


def test_a_torch_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiodist.torch_backend import connect, open_group

    monkeypatch.setattr(torch.version, "__version__", "2.5.1+cpu")
    for make in (lambda: open_group(None), lambda: connect(None, 0, 1)):
        with pytest.raises(InvalidUsageError, match=r"needs torch 2\.6 or newer, .* 2\.5\.1\+cpu"):
            make()


# Knows of torch only, and leaves without destroy_process_group.
STOCK = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("aiodist")
    t = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(t)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if dist.get_rank() == 0:
        print("sum", t.item(), flush=True)
"""


@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        ["-m", "aiodist", "run", "--no-python", "-n", "2", "--raw"],
    ],
    ids=["torchrun", "aiodist run"],
)
def test_an_unmodified_script(
    launcher: list[str], tmp_path: Path, run: Run, warm_python: WarmPython
) -> None:
    """Under torchrun the ranks import torch, and not aiodist, themselves; torchrun need not."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(STOCK))
    if "--no-python" in launcher:
        said = run(*launcher, *warm_python.command, str(script))
    else:
        said = run(*launcher, str(script), python=warm_python.command)
    assert "sum 3.0" in said


# At first rank 1 dies when rank 0 waits for it, at a store that outlives both.
DIES_ONCE = """
    import os, sys
    import torch
    import torch.distributed as dist

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        for prefix in ("default_pg", "0/", "aiodist/"):
            store = dist.PrefixStore(prefix, store)
        store.wait(["aiodist/here/0"])
        sys.exit(3)
    dist.init_process_group("aiodist")
    t = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(t)
    if dist.get_rank() == 0:
        print("sum", t.item(), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_workers_that_torchrun_starts_anew_meet(
    tmp_path: Path, run: Run, warm_python: WarmPython
) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(textwrap.dedent(DIES_ONCE))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ("--max-restarts", "1", "--no-python")
    program = (*options, *warm_python.command, str(script))
    assert "sum 3.0" in run(*torchrun, *program, python=warm_python.command)
