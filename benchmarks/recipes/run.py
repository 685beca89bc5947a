"""Run the recipes and gather what each of them measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.hosts import INTERFACE, inside, namespaces
from benchmarks.processes import ROOT, environment
from benchmarks.recipes.plan import (
    ALONE,
    CHECKPOINTED,
    FOLDER,
    GLOO,
    OURS,
    SLOW_LINK,
    Recipe,
    measured,
)

Row = dict[str, Any]
LINK_RANKS = 2


class RecipeFailedError(RuntimeError):
    """A job ended with an error. What it wrote is in the message."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    ranks: tuple[int, ...] = (1, 2, 4)
    passes: int = 2
    epochs: int = 2
    limit: int | None = None
    rate: str | None = "20mbit"
    """What each host may send at over the slow link, in tc's words; None: leave the slow link out."""
    only: tuple[str, ...] = ()
    """Scripts to measure, and no others; empty: all."""

    def arguments(self) -> list[str]:
        """Of every recipe."""
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return ["--epochs", str(self.epochs), *limit]


def run(settings: Settings, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all recipes and return the report, as JSON can hold it.

    Within a job the backends take turns in the same processes, as often as there are passes: A B A B.
    Raises RecipeFailedError; a recipe whose replicas differ fails.
    """
    before, began = machine.describe(), time.monotonic()
    rows: list[Row] = []
    for ranks in settings.ranks:
        orders = _orders(ranks, settings)
        rows += _job(orders, settings, _launcher(ranks))
        for recipe, backend, number in (
            each for each in _turns(ranks, settings) if each[0].starts_ranks
        ):
            rows += _job([(recipe, backend, ranks, number)], settings, None)
        progress(f"{ranks} ranks: {time.monotonic() - began:.0f} s so far")
    link = _slow_link(settings) if settings.rate is not None else []
    return {
        "format": 1,
        "machine": before,
        "settings": {
            "ranks": settings.ranks,
            "passes": settings.passes,
            "epochs": settings.epochs,
            "rate": settings.rate,
            "seconds": round(time.monotonic() - began),
        },
        "rows": rows,
        "link": link,
    }


Order = tuple[Recipe, str, int, int]
"""A recipe, its backend, the number of ranks and of the pass."""


def _turns(ranks: int, settings: Settings) -> Iterator[tuple[Recipe, str, int]]:
    for recipe in measured(settings.only):
        for number in range(settings.passes):
            for backend in recipe.backends(ranks):
                yield recipe, backend, number


def _orders(ranks: int, settings: Settings) -> list[Order]:
    turns = [
        (recipe, backend, ranks, number)
        for recipe, backend, number in _turns(ranks, settings)
        if not recipe.starts_ranks
    ]
    alone = [(Recipe(ALONE), OURS, 1, number) for number in range(settings.passes)]
    return [*(alone if ranks == 1 else []), *turns]


def _launcher(ranks: int) -> Callable[[list[str]], list[list[str]]]:
    launcher = [sys.executable, "-m", "aiodist", "run", "-n", str(ranks), "--no_python"]
    return lambda program: [[*launcher, *program]]


def _job(
    orders: Sequence[Order],
    settings: Settings,
    start: Callable[[list[str]], list[list[str]]] | None,
    environments: Sequence[dict[str, str]] = ({},),
) -> list[Row]:
    """Run ``orders`` in one job and return a row for each.

    ``start``: from the program of a rank to what is executed, one command for each environment; None: the
    recipe starts its ranks itself.
    """
    with tempfile.TemporaryDirectory(prefix="aiodist-recipes-") as name:
        folder = Path(name)
        commands = [
            _command(order, settings, folder, number) for number, order in enumerate(orders)
        ]
        if start is None:
            [(script, *arguments)] = commands
            nprocs = ("--nprocs", str(orders[0][2]))
            programs = [[sys.executable, str(FOLDER / script), *arguments, *nprocs]]
        else:
            file = folder / "orders.json"
            file.write_text(json.dumps(commands))
            programs = start([sys.executable, "-m", "benchmarks.recipes.rank", str(file)])
        _execute(programs, environments, folder)
        return [
            _row(order, json.loads((folder / f"{number}.json").read_text()))
            for number, order in enumerate(orders)
        ]


def _command(order: Order, settings: Settings, folder: Path, number: int) -> list[str]:
    recipe, backend, _, _ = order
    command = [
        *recipe.command(backend),
        *settings.arguments(),
        "--summary",
        f"{folder}/{number}.json",
    ]
    if recipe.script == "evaluate.py":
        return [*command, "--resume", f"{folder}/{CHECKPOINTED}/model_best.pth.tar"]
    return [*command, "--checkpoint-dir", f"{folder}/{recipe.script}"]


def _row(order: Order, summary: dict[str, Any]) -> Row:
    recipe, backend, ranks, number = order
    assert summary["ranks"] == ranks, (order, summary["ranks"])
    names = ("images_per_second", "top1", "images", "bytes_per_step", "steps", "sha256")
    seconds = [round(each, 6) for each in summary["communication_by_step"]]
    return {
        "recipe": recipe.name,
        "backend": backend,
        "ranks": ranks,
        "pass": number,
        **{name: summary[name] for name in names},
        "communication_by_step": seconds,
    }


def _execute(
    programs: Sequence[Sequence[str]], environments: Sequence[dict[str, str]], folder: Path
) -> None:
    # Files, because a full pipe would stop a rank while the others are measured.
    outputs = [(folder / f"output-{number}").open("w+") for number in range(len(programs))]
    processes = []
    try:
        for program, more, output in zip(programs, environments, outputs, strict=True):
            environ = environment() | {"PYTHONPATH": str(ROOT)} | more
            processes.append(
                subprocess.Popen(program, env=environ, stdout=output, stderr=subprocess.STDOUT)
            )
        codes = [process.wait() for process in processes]
        if any(codes):
            texts = [Path(output.name).read_text()[-8000:] for output in outputs]
            raise RecipeFailedError("\n".join([f"exit codes {codes}", *texts]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for output in outputs:
            output.close()


def _slow_link(settings: Settings) -> list[Row]:
    """Compare `SLOW_LINK` over two hosts, made of network namespaces, whose sending tc's tbf limits."""
    orders = [
        (recipe, backend, LINK_RANKS, number)
        for number in range(settings.passes)
        for recipe in SLOW_LINK
        for backend in (OURS, GLOO)
    ]
    with namespaces(LINK_RANKS, settings.rate) as hosts:
        each = [
            environment(INTERFACE)
            | {
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(LINK_RANKS),
                "AIODIST_TRANSPORT": "tcp",  # the hosts share a kernel, so they could share memory
            }
            for rank in range(LINK_RANKS)
        ]
        return _job(
            orders, settings, lambda program: [inside(host, program) for host in hosts], each
        )
