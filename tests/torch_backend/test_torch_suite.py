"""PyTorch's own tests over this backend, at two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch_backend import checkout_suite, torch_suite

HERE = Path(__file__).parent


SOME = ("DistributedDataParallel", "object", "send_recv", "destroy")
"""Parts of the names of those that run in ``make test``."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("only", "count"),
    [
        pytest.param(SOME, 17, id="some"),
        pytest.param((), 96, id="all", marks=pytest.mark.examples),
    ],
)
def test_what_can_run_passes(tmp_path: Path, only: tuple[str, ...], count: int) -> None:
    """Those listed as left out aside, every test passes, and none is skipped."""
    outcomes = tmp_path / "outcomes.json"
    log = tmp_path / "log"
    with log.open("w") as said:
        subprocess.run(
            [
                sys.executable,
                str(HERE / "torch_suite.py"),
                "--ranks",
                "2",
                "--json",
                str(outcomes),
                *(word for part in only for word in ("--only", part)),
            ],
            cwd=HERE.parents[1],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",  # the ranks share the cores
                "PYTHONPATH": str(HERE.parents[1]),
                "TMPDIR": str(tmp_path),
            },
            stdout=said,
            stderr=said,
            check=False,
        )
    assert outcomes.exists(), log.read_text()[-4000:]
    found = json.loads(outcomes.read_text())
    assert len(found) >= count
    others = {name: why for name, (what, why, _) in found.items() if what != "passed"}
    assert others == {}


def test_each_test_is_left_out_for_one_reason() -> None:
    listed = torch_suite.tomllib.loads(torch_suite.LEFT_OUT.read_text())
    entries = [*listed["left_out"], *listed["from_ranks"]]
    names = [name for entry in entries for name in entry["tests"]]
    assert len(names) == len(set(names))
    assert all(entry["reason"] for entry in entries)
    assert torch_suite.left_out(4) < torch_suite.left_out(3) < torch_suite.left_out(2)


def test_a_checkouts_tests_are_compared_by_what_passes_over_gloo(tmp_path: Path) -> None:
    report = """<testsuites><testsuite>
        <testcase classname="test_a.Case" name="test_both"/>
        <testcase classname="test_a.Case" name="test_neither"><failure message="x"/></testcase>
        <testcase classname="test_a.Case" name="test_later"><skipped message="x"/></testcase>
    </testsuite></testsuites>"""
    gloo = checkout_suite.outcomes_of(report)
    assert gloo == {
        "Case.test_both": "passed",
        "Case.test_neither": "failed",
        "Case.test_later": "skipped",
    }
    assert checkout_suite.only_over_gloo(gloo, gloo) == []
    assert checkout_suite.only_over_gloo(gloo, {}) == ["Case.test_both"]

    folder = tmp_path / "test" / "distributed"
    (folder / "rpc").mkdir(parents=True)
    for name in ("test_a.py", "test_b.py", "common.py", "rpc/test_c.py"):
        (folder / name).write_text("")
    (folder / "test_d.py").write_text("group = c10d.ProcessGroupGloo(store, 0, 1)")
    assert checkout_suite.files_of(tmp_path, []) == [folder / "test_a.py", folder / "test_b.py"]
    assert checkout_suite.files_of(tmp_path, ["_b"]) == [folder / "test_b.py"]
