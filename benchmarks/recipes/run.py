"""Run the recipes and gather what each of them measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.hosts import INTERFACE, NoNamespacesError, inside, namespaces
from benchmarks.processes import ROOT, environment
from benchmarks.recipes.plan import (
    ALONE,
    CHECKPOINTED,
    EVALUATION,
    FOLDER,
    GLOO,
    ITSELF,
    LAUNCHER,
    OURS,
    SLOW_LINK,
    SLURM,
    UNDER_SLURM,
    Recipe,
    measured,
)

Row = dict[str, Any]
LINK_RANKS = 2
STOP_SECONDS = 15.0
"""How long a job that is told to end may take."""


class RecipeFailedError(RuntimeError):
    """A job ended with an error. What it wrote is in the message."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    ranks: tuple[int, ...] = (1, 2, 4)
    passes: int = 2
    epochs: int = 4
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
    with _slurm(settings, progress) as slurm:
        for ranks in settings.ranks:
            launched = {LAUNCHER: _launcher(ranks)} | ({SLURM: slurm(ranks)} if slurm else {})
            for started_by, start in launched.items():
                rows += _job(_orders(ranks, settings, started_by), settings, start)
            for order in _orders(ranks, settings, ITSELF):
                rows += _job([order], settings, None)
            progress(f"{ranks} ranks: {time.monotonic() - began:.0f} s so far")
    link = _slow_link(settings, progress)
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


Start = Callable[[list[str]], list[list[str]]]
"""From the program of a rank to what is executed: one command for each environment of the job."""


def _orders(ranks: int, settings: Settings, started_by: str) -> list[Order]:
    """Return what to run with ranks that ``started_by`` starts; the backends take turns."""
    alone = Recipe(ALONE, gloo=None)
    recipes = [alone] if ranks == 1 and started_by == LAUNCHER else []
    recipes += [each for each in measured(settings.only) if each.started_by == started_by]
    return [
        (recipe, backend, ranks, number)
        for recipe in recipes
        for number in range(settings.passes)
        for backend in recipe.backends(ranks)
    ]


def _launcher(ranks: int) -> Start:
    launcher = [sys.executable, "-m", "aiodist", "run", "-n", str(ranks), "--no_python"]
    return lambda program: [[*launcher, *program]]


@contextmanager
def _slurm(
    settings: Settings, progress: Callable[[str], None]
) -> Iterator[Callable[[int], Start] | None]:
    """Run a Slurm cluster of the tests during the block, if a recipe needs it; None without Slurm.

    The value takes the number of ranks. They run on one of the cluster's nodes.
    """
    if not any(recipe.started_by == SLURM for recipe in measured(settings.only)):
        yield None
        return
    from tests.slurm.cluster import cluster, missing

    if why := missing():
        progress(f"without {UNDER_SLURM}: {why}")
        yield None
        return
    with cluster() as slurm:
        names = ("SLURM_CONF", "PATH")
        finds = ["env", *(f"{name}={slurm.environ[name]}" for name in names)]
        yield (
            lambda ranks: (
                lambda program: [
                    [
                        *finds,
                        *slurm.command(
                            "srun", "-N1", f"-n{ranks}", "--kill-on-bad-exit=1", *program
                        ),
                    ]
                ]
            )
        )


def _job(
    orders: Sequence[Order],
    settings: Settings,
    start: Start | None,
    environments: Sequence[dict[str, str]] = ({},),
) -> list[Row]:
    """Run ``orders`` in one job and return a row for each.

    ``start``: None where the recipe starts its ranks itself.
    """
    if not orders:
        return []
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
    if recipe.script == EVALUATION:
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
                subprocess.Popen(
                    program,
                    env=environ,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a group of its own, for `_end`
                )
            )
        codes = [process.wait() for process in processes]
        if any(codes):
            texts = [Path(output.name).read_text()[-8000:] for output in outputs]
            raise RecipeFailedError("\n".join([f"exit codes {codes}", *texts]))
    finally:
        for process in processes:
            _end(process)
        for output in outputs:
            output.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and its ranks. A launcher ends its ranks; others are in the process's group."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _slow_link(settings: Settings, progress: Callable[[str], None]) -> list[Row]:
    """Compare `SLOW_LINK` over two hosts, made of network namespaces, whose sending tc's tbf limits.

    Return no rows without a rate, and where namespaces cannot be made.
    """
    if settings.rate is None:
        return []
    orders = [
        (recipe, backend, LINK_RANKS, number)
        for number in range(settings.passes)
        for recipe in SLOW_LINK
        for backend in (OURS, GLOO)
    ]
    with ExitStack() as made:
        try:
            hosts = made.enter_context(namespaces(LINK_RANKS, settings.rate))
        except NoNamespacesError as error:
            progress(f"without the slow link: {error}")
            return []
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
