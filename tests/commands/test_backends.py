from __future__ import annotations

import re

import pytest
import torch

import aiodist.commands.main as cli
from aiodist.backends.registry import OFFERS, why_not
from aiodist.backends.support_table import COLUMNS, FUNCTIONS


def test_every_backend_has_a_line_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["backends"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["BACKEND", "TENSORS", "HERE"]
    found = {line.split()[0]: line for line in lines[: len(OFFERS)]}
    assert list(found) == list(OFFERS)
    for name, line in found.items():
        reason = why_not(name)
        assert line.endswith(reason)
        assert (" no " if reason else " yes") in line
    assert found["aiodist"].split() == ["aiodist", "cpu,", "cuda", "yes"]
    assert lines[len(OFFERS) + 1].startswith("default: ")


def test_the_table_of_functions_is_that_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["backends"]) == 0
    head, *lines = capsys.readouterr().out.partition("FUNCTION")[2].splitlines()
    assert re.split("  +", head.strip()) == [f"{name}, {device}" for name, device in COLUMNS]
    assert len(lines) == len(FUNCTIONS)
    for line, (function, cells) in zip(lines, FUNCTIONS.items(), strict=True):
        name, *found = re.split("  +", line)
        assert name == function
        for cell, expected, (backend, device) in zip(found, cells, COLUMNS, strict=True):
            is_here = not why_not(backend) and (device == "cpu" or torch.cuda.is_available())
            assert cell == (expected if is_here else "no")


def test_an_extra_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["backends", "nccl"]) == cli.USAGE_ERROR
    assert "aiodist backends --help" in capsys.readouterr().err
