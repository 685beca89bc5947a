"""``--keep-going``: a rank fails, and the launcher leaves the others alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiodist.commands.main import main as aiodist
from aiodist.errors import InvalidUsageError
from aiodist.launch import JobSpec
from aiodist.observe.folder import read_parts

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_the_program_of_the_page_goes_on_without_the_dead(sandbox, run_command):
    """Its ranks print what stands below it, and the exit code is that of the rank that died."""
    (program,) = (text for kind, text in BLOCKS if kind == "python" and "SIGKILL" in text)
    (shown,) = (text for kind, text in BLOCKS if kind == "console" and "--keep-going" in text)
    (sandbox.folder / "survivors.py").write_text(program)
    command, *lines = shown.splitlines()
    launcher = command.removeprefix("$ aiodist ").split()
    dump = {"AIODIST_DUMP_DIR": str(sandbox.folder / "dump")}
    code, out, err = sandbox.run(*run_command[:-1], *launcher, env=dump)
    assert code == 137, err
    parts = read_parts(sandbox.folder / "dump").parts
    reasons = {rank: part.reason for rank, part in parts.items()}
    assert reasons.keys() == {0, 2}
    # and not that the others revoked the group, which is how they came to shrink it
    assert all(reason.startswith("rank 1 (") for reason in reasons.values()), reasons
    # One rank's lines keep their order; those of two ranks come as they come.
    printed = [line for line in lines if line.startswith("[")]
    assert sorted(out.splitlines(), key=_rank) == sorted(printed, key=_rank)
    told = [_without_figures(line) for line in err.splitlines()]
    summary = [line for line in lines if line.startswith("aiodist: ")]
    for line in summary:
        assert _without_figures(line) in told
    assert len(summary) == 4


def _without_figures(line: str) -> str:
    """Return ``line`` without what differs between two runs."""
    return re.sub(r"pid \d+, host [^)]+|\d+\.\d s, peak memory .*", "-", line)


def _rank(line: str) -> str:
    return line[:3]


def test_the_ranks_that_may_go_on_are_named_with_the_signal_that_ended_another(
    sandbox, launch_command
):
    script = sandbox.script(
        "if RANK == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    job = sandbox.start(*launch_command, "--nproc_per_node=3", "--keep_going", script)
    told = b"aiodist: rank 1 has failed: SIGKILL; ranks 0, 2 may go on without it (--keep-going)\n"
    assert told in iter(job.stderr.readline, b"")
    (sandbox.folder / "go").touch()
    assert sandbox.finish(job)[0] == 137


def test_the_first_failure_is_the_jobs_and_the_rest_end_by_themselves(sandbox, launch_command):
    script = sandbox.script(
        "if RANK == '1':\n"
        "    import subprocess\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    open('new', 'w').write(str(child.pid))\n"
        "    os.replace('new', 'child')\n"
        "    raise ValueError('boom')\n"
        "def stopped(n, f): raise SystemExit('stopped')\n"
        "signal.signal(signal.SIGTERM, stopped)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print('went on')\n"
        "sys.exit(7 if RANK == '2' else 0)\n"
    )
    job = sandbox.start(*launch_command, "--nproc_per_node=3", "--keep_going", script)
    told = b"rank 1 has failed: exit code 1; ranks 0, 2 may go on without it (--keep-going)"
    for line in job.stderr:
        if told in line:
            break
    else:
        pytest.fail("the launcher did not tell of the ranks that may go on")
    # What the failed rank had started ends at once: it may hold the streams that tell of its end.
    sandbox.wait_dead(int(*sandbox.wait_for("child")))
    (sandbox.folder / "go").touch()
    code, out, err = sandbox.finish(job)
    assert code == 1
    assert sorted(out.splitlines()) == ["[0] went on", "[2] went on"]
    assert "rank 1 failed first: exit code 1" in err
    assert "rank 0 returned with exit code 0; then ended: rank 2 by exit code 7" in err
    assert err.splitlines()[-1] == "ValueError: boom"


def test_a_place_cannot_be_left_empty_and_filled(capsys):
    with pytest.raises(InvalidUsageError, match="exclude each other"):
        JobSpec(program=("x",), max_restarts=1, keep_going=True)
    assert aiodist(["run", "--keep-going", "--max-restarts", "1", __file__]) == 2
    assert "--keep-going and --max-restarts exclude each other" in capsys.readouterr().err
