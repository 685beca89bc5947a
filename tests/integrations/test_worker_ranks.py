"""Ranks and workers of other engines; ``make test-engines`` runs the engines themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodist.integrations.worker_ranks import place_by_host, variables_of
from aiodist.launch.rank_function import call_as_rank


def test_ranks_of_a_host_follow_each_other() -> None:
    places = place_by_host(["b", "a", "b", "a", "c"])
    assert places == [(0, 0, 0, 2), (2, 1, 1, 2), (1, 2, 0, 2), (3, 3, 1, 2), (4, 4, 0, 1)]
    assert variables_of(places[3], 5, "host", 1234) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1234",
    }


def test_a_call_as_a_rank_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "of before")
    monkeypatch.setenv("AIODIST_REPLACEMENT", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    names = ("RANK", "WORLD_SIZE", "AIODIST_REPLACEMENT")

    def read(name: str) -> list[str | None]:
        return [name, *map(os.environ.get, names)]

    found = call_as_rank(read, ["x"], {"RANK": "0", "WORLD_SIZE": "1"})
    assert found == ["x", "0", "1", None]
    assert [os.environ.get(name) for name in names] == ["of before", None, "1"]


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_missing_engine_is_named_with_its_extra(engine: str) -> None:
    package = {"dask": "distributed"}.get(engine, engine)
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try: import aiodist.integrations.{engine}\n"
        "except ImportError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'aiodist[{engine}]'" in said.stdout
