from __future__ import annotations

import pytest

import aiodist.launch.cli as cli
from aiodist.backends.registry import OFFERS, why_not


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
    assert lines[-1].startswith("default: ")


def test_a_word_too_many_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["backends", "nccl"]) == cli.USAGE_ERROR
    assert "aiodist backends --help" in capsys.readouterr().err
