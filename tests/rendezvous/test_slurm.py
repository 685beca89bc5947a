"""Slurm's node lists, its tasks on each node, and the port made from a job's number."""

from __future__ import annotations

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.slurm import (
    expand_counts,
    expand_nodelist,
    job_port,
    tasks_on_this_node,
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("node[01-04,7],gpu3", ["node01", "node02", "node03", "node04", "node7", "gpu3"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[01,03].x", ["r1n01.x", "r1n03.x", "r2n01.x", "r2n03.x"]),
        ("gpu-node-3.cluster", ["gpu-node-3.cluster"]),
    ],
)
def test_expansion(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize("text", ["", "n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[]", "a b", "n[[1]]"])
def test_invalid_values_are_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidUsageError, match=r"not a Slurm node list .* set MASTER_ADDR"):
        expand_nodelist(text)


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2,1", [2, 1]), ("2(x3),1", [2, 2, 2, 1])]
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts
    for node, count in enumerate(counts):
        step = {"SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": text}
        assert tasks_on_this_node({"SLURM_TASKS_PER_NODE": "9"} | step) == count


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_NODEID": "0"},
        {"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "four"},
        {"SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "4"},
        {"SLURM_NODEID": "x", "SLURM_TASKS_PER_NODE": "4"},
    ],
)
def test_tasks_on_this_node_may_be_unknown(environ: dict[str, str]) -> None:
    assert tasks_on_this_node(environ) is None


def test_ports_differ_by_job_and_step_and_stay_below_the_ephemeral_ones() -> None:
    ports = {job_port(str(job), str(step)) for job in range(50) for step in range(2)}
    assert len(ports) > 90
    assert all(10_000 <= port < 30_000 for port in ports)
    assert job_port("4711", "0") == job_port("4711", "0")
