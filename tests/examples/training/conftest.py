"""Runs training recipes small and returns how they ended and what they measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[3] / "examples" / "training"
SEVERAL = Path(__file__).with_name("programs") / "several.py"

Recipe = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class CompletedRun:
    """How one recipe ended on all ranks of a job."""

    codes: list[int]
    """The exit code of each rank."""
    output: list[str]
    """What each rank wrote to stdout."""
    errors: list[str]
    """What each rank wrote to stderr."""
    summary: dict[str, Any]
    """What ``--summary`` wrote; empty where it wrote nothing."""


Recipes = Callable[..., list[CompletedRun]]


@pytest.fixture
def recipe(launch: Callable[..., str], tmp_path: Path) -> Recipe:
    """``recipe(ranks, name, *arguments)``: the summary of a run; a run that fails is an error.

    ``summary["output"]`` is what the job printed. Files are written below ``tmp_path``.
    """

    def run(ranks: int, name: str, *arguments: str) -> dict[str, Any]:
        file = tmp_path / "summary.json"
        file.unlink(missing_ok=True)
        output = launch(ranks, RECIPES / name, "--summary", str(file), *arguments)
        return json.loads(file.read_text()) | {"output": output}

    return run


@pytest.fixture
def recipes(launch: Callable[..., str], tmp_path: Path) -> Recipes:
    """``recipes(ranks, runs)``: how each of ``runs`` ended, one after the other in one job.

    A run is a recipe's name and its arguments, in which ``RANK`` stands for the rank. Run K of a job
    writes its files into the folder ``ranks-K``, for example ``2-0``, below ``tmp_path``.
    """

    def run(ranks: int, runs: Sequence[Sequence[str]]) -> list[CompletedRun]:
        folders = [tmp_path / f"{ranks}-{number}" for number in range(len(runs))]
        given = [
            [*each, "--checkpoint-dir", str(folder), "--summary", str(folder / "summary.json")]
            for each, folder in zip(runs, folders, strict=True)
        ]
        launch(ranks, SEVERAL, json.dumps(given))
        results = [
            json.loads((tmp_path / f"results-{rank}.json").read_text()) for rank in range(ranks)
        ]
        ended = []
        for folder, of_ranks in zip(folders, zip(*results, strict=True), strict=True):
            codes, output, errors = (list(column) for column in zip(*of_ranks, strict=True))
            file = folder / "summary.json"
            summary = json.loads(file.read_text()) if file.exists() else {}
            ended.append(CompletedRun(codes, output, errors, summary))
        return ended

    return run
