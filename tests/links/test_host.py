"""What ranks of one host know each other by."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodist.links.host import have_cores, host_id, own_cores


def test_a_host_has_one_name_and_a_variable_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIODIST_HOST_ID", raising=False)
    found = host_id()
    assert found == host_id() != ""
    monkeypatch.setenv("AIODIST_HOST_ID", " rack1-node7 ")
    assert host_id() == "rack1-node7"
    monkeypatch.setenv("AIODIST_HOST_ID", "")
    assert host_id() == found


def test_ranks_have_cores_where_each_may_use_one_of_its_own() -> None:
    first, second, both = frozenset({0}), frozenset({1}), frozenset({0, 1})
    for where, each_has_one in (
        ([first], True),
        ([first, second], True),
        ([first, first], False),
        ([both, both], True),
        ([both, second], True),
        ([both, both, second], False),
    ):
        assert have_cores(where) is each_has_one


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such sets")
def test_a_process_knows_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    ask = "from aiodist.links.host import own_cores; print(own_cores())"
    pinned = f"import os; os.sched_setaffinity(0, [{core}]); {ask}"
    printed = subprocess.run([sys.executable, "-c", pinned], capture_output=True, text=True)
    assert printed.stdout == f"{frozenset({core})}\n"
    assert own_cores() == os.sched_getaffinity(0)
