"""Nodes of Slurm whose names cannot be looked up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aiodist.rendezvous.node_address import address_of_node

UNKNOWN = "no-such-node.invalid"
JOB = {"SLURM_JOB_ID": "7", "PATH": ""}


def test_a_name_that_is_known_stays() -> None:
    assert address_of_node("localhost", JOB) == "localhost"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, UNKNOWN),
        ({"SLURM_NODE_ALIASES": "(null)"}, UNKNOWN),
        ({"SLURM_NODE_ALIASES": f"other:10.0.0.1:o,{UNKNOWN}:10.0.0.2:n"}, "10.0.0.2"),
        ({"SLURM_NODE_ALIASES": f"{UNKNOWN}:[fe80::1]:n"}, "fe80::1"),
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.3"}, "10.0.0.3"),
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.3", "MASTER_ADDR": UNKNOWN}, UNKNOWN),
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.3", "SLURM_JOB_ID": ""}, UNKNOWN),
    ],
)
def test_variables(variables: dict[str, str], expected: str) -> None:
    assert address_of_node(UNKNOWN, JOB | variables) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"echo NodeName={UNKNOWN} NodeAddr=10.0.0.4 NodeHostName=n Version=1", "10.0.0.4"),
        (f"echo NodeName={UNKNOWN} NodeAddr={UNKNOWN}", "10.0.0.5"),
        ("exit 1", "10.0.0.5"),
    ],
)
def test_scontrol_is_asked(answer: str, expected: str, tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\ntest "$*" = "--oneliner show node {UNKNOWN}" || exit 9\n{answer}\n'
    )
    program.chmod(0o755)
    environ = JOB | {"PATH": str(tmp_path), "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.5"}
    assert address_of_node(UNKNOWN, environ) == expected


def test_scontrol_is_given_up_after_the_callers_time(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 60\n")
    program.chmod(0o755)
    environ = JOB | {"PATH": str(tmp_path), "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.5"}
    assert address_of_node(UNKNOWN, environ, 0.01) == "10.0.0.5"
