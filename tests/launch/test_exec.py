"""``aiodist exec``: what Slurm and MPI say, in the variables that torch reads."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from aiodist.commands.exec import job_variables, main
from aiodist.errors import InvalidUsageError
from tests.launch.conftest import Sandbox

EXEC = (sys.executable, "-m", "aiodist", "exec")

PLACE = (
    "import os\n"
    "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT']\n"
    "print(*[os.environ.get(name) for name in names])\n"
)
TRAIN = (
    "import os, torch\n"
    "import torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "total = torch.ones(1)\n"
    "dist.all_reduce(total)\n"
    "print(dist.get_rank(), os.environ['LOCAL_RANK'], os.environ['MASTER_ADDR'], total.item())\n"
    "dist.destroy_process_group()\n"
)


def mpi(rank: int, size: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
    }


@pytest.mark.timeout(120)
def test_torchs_own_api_meets_under_mpiexec_on_one_host(sandbox: Sandbox) -> None:
    """The launcher names no port; the ranks agree on a free one."""
    sandbox.limit *= 4
    (sandbox.folder / "train.py").write_text(TRAIN)
    started = [
        sandbox.start(*EXEC, sys.executable, "train.py", env=mpi(rank, 2)) for rank in range(2)
    ]
    for rank, process in enumerate(started):
        code, out, err = sandbox.finish(process)
        assert code == 0, err
        assert out == f"{rank} {rank} 127.0.0.1 2.0\n"


def test_a_rank_alone_has_a_port_of_its_own(sandbox: Sandbox) -> None:
    env = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    code, out, err = sandbox.run(*EXEC, sys.executable, "-c", PLACE, env=env)
    assert code == 0, err
    assert out.split()[:5] == ["0", "0", "1", "1", "127.0.0.1"]
    assert int(out.split()[5]) > 1023


def test_the_exit_code_is_the_programs(sandbox: Sandbox) -> None:
    code, _, _ = sandbox.run(*EXEC, "sh", "-c", "exit 7", env=mpi(0, 1))
    assert code == 7


def test_the_program_does_not_inherit_the_signals_that_python_ignores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    before = [signal.getsignal(number) for number in numbers]
    found = []

    def execve(*_: object) -> None:
        found.extend(signal.getsignal(number) for number in numbers)

    monkeypatch.setattr(os, "execve", execve)
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    try:
        main(["true"])
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert found == [signal.SIG_DFL] * 2


def test_slurm_says_everything() -> None:
    environ = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_STEP_NODELIST": "localhost,other",
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
    }
    found = job_variables(environ)
    port = int(found.pop("MASTER_PORT"))
    assert 10_000 <= port < 30_000
    assert found == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
    }
    assert job_variables(environ | {"MASTER_ADDR": "me", "MASTER_PORT": "29500"})[
        "MASTER_PORT"
    ] == ("29500")


def test_without_a_launcher_the_message_has_the_command_to_write(sandbox: Sandbox) -> None:
    code, _, err = sandbox.run(*EXEC, "true")
    assert code == 2
    assert "no launcher has started this process" in err


def test_mpi_over_several_hosts_wants_an_address() -> None:
    with pytest.raises(InvalidUsageError, match="MASTER_ADDR, MASTER_PORT are not set"):
        job_variables(mpi(0, 4) | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
