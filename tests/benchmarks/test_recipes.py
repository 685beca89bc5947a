"""The comparison of the training recipes: real small runs, and the page that comes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import ROOT
from benchmarks.recipes import page, plot
from benchmarks.recipes.plan import ALONE, FOLDER, GLOO, OURS, Recipe
from benchmarks.recipes.run import RecipeFailedError, Settings, _job, _launcher, run

SMALL = Settings(ranks=(1, 2), passes=2, epochs=1, limit=128, rate=None, only=("distributed.py",))


@pytest.mark.benchmarks
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("fonts")
def test_backends_take_turns_and_every_run_is_measured(tmp_path: Path) -> None:
    said: list[str] = []
    report = run(SMALL, said.append)
    assert [line.partition(":")[0] for line in said] == ["1 ranks", "2 ranks"]
    assert [(row["ranks"], row["recipe"], row["backend"]) for row in report["rows"]] == [
        *[(1, ALONE, OURS)] * 2,
        *[(1, "distributed.py", OURS)] * 2,
        *[(2, "distributed.py", OURS), (2, "distributed.py", GLOO)] * 2,
    ]
    for row in report["rows"]:
        assert row["images"] == 128
        if row["recipe"] != ALONE:
            assert row["bytes_per_step"] == 4 * 102_130
            assert len(row["communication_by_step"]) == row["steps"] == 1
            assert row["communication_by_step"][0] > 0
    # The same seed gives the same bits: the sum of two numbers has no order.
    assert len({row["sha256"] for row in report["rows"] if row["ranks"] == 2}) == 1

    plot.draw(report, tmp_path)
    assert (tmp_path / plot.FIGURE).read_text().startswith("<?xml")
    assert "| distributed.py | Gloo |" in page.render(report, "recipes")


@pytest.mark.benchmarks
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_recipe_that_fails_ends_the_run_with_what_it_wrote() -> None:
    order = (Recipe("distributed.py", ("--arch", "vgg")), OURS, 2, 0)
    with pytest.raises(RecipeFailedError, match="--arch vgg is unknown"):
        _job([order], SMALL, _launcher(2))


@pytest.mark.benchmarks
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("script", ["distributed.py", "spawned.py"])
def test_sigterm_ends_the_ranks_too(
    script: str, tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    output = tmp_path / "page" / "recipes.md"
    endless = ("--ranks", "2", "--epochs", "100000", "--limit", "64", "--no-link")
    command = [sys.executable, "-m", "benchmarks.recipes", *endless, "--only", script]
    run = subprocess.Popen(
        [*command, "--output", str(output)],
        env=os.environ | {"TMPDIR": str(tmp_path)},  # by it the processes are found
        cwd=ROOT,
    )
    limit = time.monotonic() + scaled(120)
    while not list(tmp_path.glob(f"aiodist-recipes-*/{script}/checkpoint.pth.tar")):
        assert run.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert len(_processes_with(f"TMPDIR={tmp_path}")) >= 3  # this one and two ranks
    run.send_signal(signal.SIGTERM)
    assert run.wait(scaled(60)) == 143
    while _processes_with(f"TMPDIR={tmp_path}") and time.monotonic() < limit:
        time.sleep(0.1)  # the kernel takes a moment to end what was killed
    assert _processes_with(f"TMPDIR={tmp_path}") == []
    assert not list(tmp_path.glob("aiodist-recipes-*"))
    assert not output.exists()


def _processes_with(variable: str) -> list[str]:
    """Return the command lines of the processes whose environment has ``variable``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def row(recipe: str, backend: str, ranks: int, **more: Any) -> dict[str, Any]:
    usual = {
        "images_per_second": 1000.0,
        "top1": 90.0,
        "bytes_per_step": 4000.0,
        "communication_by_step": [],
    }
    return {"recipe": recipe, "backend": backend, "ranks": ranks, **usual, **more}


def test_the_page_equals_the_page_of_the_results() -> None:
    ours = [
        row("distributed.py", OURS, 2, images_per_second=rate, communication_by_step=[0.001, 0.005])
        for rate in (1000.0, 2000.0)
    ]
    report = {
        "machine": {
            "date": "now",
            "cpu": "none",
            "cores": 2,
            "memory_gib": 1,
            "system": "Linux",
            "load_average": [0.0, 0.0, 0.0],
            "python": "CPython",
            "versions": {"torch": "2"},
            "aiodist": {"commit": "none"},
        },
        "settings": {"ranks": [1, 2], "passes": 2, "epochs": 1, "rate": "20mbit", "seconds": 1},
        "rows": [
            row(ALONE, OURS, 1, top1=91.5, bytes_per_step=None),
            *ours,
            row("distributed.py", GLOO, 2, top1=90.5),
            row("local_sgd.py", OURS, 1, top1=97.0),
            row("local_sgd.py", OURS, 2, top1=96.5),
        ],
        "link": [
            row("local_sgd.py --synchronous", OURS, 2, bytes_per_step=8000.0),
            row(
                "local_sgd.py", OURS, 2, bytes_per_step=1000.0, images_per_second=3000.0, top1=89.0
            ),
        ],
    }
    text = page.render(report, "recipes")
    assert "| dataparallel.py | – | 1,000 | 91.5 % | – | – | – | – |" in text  # noqa: RUF001
    assert (
        "| distributed.py | aiodist | 1,500 | 90.0 % | 4,000 | 3.00 ms | 3.00 ms | 5.00 ms |"
        in text
    )
    assert "differs most in distributed.py with 2 ranks, by 1.5 percentage points (lower)" in text
    assert "for local_sgd.py that process is its own single rank" in text
    assert (
        "over Gloo it differs most in distributed.py with 2 ranks, by 0.5 percentage points (lower)"
        in text
    )
    assert "may send 20 Mbit/s" in text
    assert "give 0.125 of the bytes and 3.0 times the images per second" in text
    assert "accuracy is 89.0 %, beside 90.0 %" in text
    assert "Not measured. The link is made of" in page.render(report | {"link": []}, "recipes")


def test_without_namespaces_the_slow_link_alone_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    said: list[str] = []
    report = run(Settings(ranks=()), said.append)
    assert report["link"] == []
    assert said[-1].startswith("without the slow link: there is no ip command here")


def test_every_recipe_is_on_the_page_with_its_command() -> None:
    text = "\n".join(page._recipes({ALONE}))
    for file in FOLDER.glob("*.py"):
        assert f"### {file.name}\n" in text
    assert ALONE not in text.rpartition("Not measured below: ")[2]
    assert "distributed.py" in text.rpartition("Not measured below: ")[2]
