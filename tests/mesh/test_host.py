"""What ranks of one host know each other by."""

from __future__ import annotations

import pytest

from aiodist.mesh.host import cores, host_id


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


def test_there_is_a_core() -> None:
    assert cores() >= 1
